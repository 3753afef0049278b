#include "controller/store/backup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/rows.h"

namespace titan::store {
namespace {

failpoint::Failpoint copy_point("backup.begin"), copied_point("backup.copied"), synced_point("backup.synced"),
    restored_point("restore.copied"), raised_point("restore.epoch"), renamed_point("restore.renamed");

namespace fs = std::filesystem;

absl::StatusOr<Database> open_to_read(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);
  if (code != SQLITE_OK) return sqlite_status(raw, code, absl::StrCat("open ", path));
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 5000);
  return database;
}

absl::Status sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, absl::StrCat("open ", path));
  const int failed = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return failed == 0 ? absl::OkStatus() : errno_status(failed, absl::StrCat("fsync ", path));
}

// Creates a private file: nobody else can read it before it has any content.
absl::Status make_empty_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", path));
  struct stat file {};
  const bool empty = ::fstat(fd, &file) == 0 && file.st_size == 0 && ::fchmod(fd, 0600) == 0;
  ::close(fd);
  return empty ? absl::OkStatus() : absl::FailedPreconditionError(absl::StrCat(path, " is not an empty file"));
}

absl::Status check_pages(sqlite3* database) {
  TITAN_ASSIGN_OR_RETURN(Statement check, Statement::prepare(database, "PRAGMA integrity_check(1)"));
  TITAN_ASSIGN_OR_RETURN(const bool answered, check.step());
  if (answered && check.text(0) == "ok") return absl::OkStatus();
  return absl::DataLossError(answered ? check.text(0) : "no answer");
}

absl::Status read_cluster(sqlite3* database, StoreInfo& info) {
  TITAN_ASSIGN_OR_RETURN(const Meta meta, read_meta(database));
  info.cluster = meta.id;
  info.revision = std::max(meta.last_revision, meta.compacted_revision);
  if (info.cluster.empty()) return absl::DataLossError("has no cluster id");
  TITAN_ASSIGN_OR_RETURN(const std::string damage, damage_of_heads(database, meta));
  return damage.empty() ? absl::OkStatus() : absl::DataLossError(damage);
}

absl::Status read_log(sqlite3* database, StoreInfo& info) {
  TITAN_ASSIGN_OR_RETURN(Statement rows, Statement::prepare(database, "SELECT revision, key, value, crc FROM log"));
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const RecordChange change, read_row(rows));
    info.revision = std::max(info.revision, change.revision);
  }
}

absl::Status read_all(sqlite3* database, StoreInfo& info) {
  absl::Status status = check_pages(database);
  if (status.ok()) status = read_cluster(database, info);
  if (status.ok()) status = read_log(database, info);
  return absl::IsInternal(status) ? absl::InvalidArgumentError("is not a titan-controller store") : status;
}

absl::StatusOr<std::string> serialise(sqlite3* database) {
  sqlite3_int64 size = 0;
  const std::unique_ptr<unsigned char, decltype(&sqlite3_free)> image(sqlite3_serialize(database, "main", &size, 0),
                                                                      &sqlite3_free);
  if (image == nullptr) return absl::ResourceExhaustedError("no memory for a copy of the store");
  std::string bytes(reinterpret_cast<const char*>(image.get()), static_cast<size_t>(size));
  // Bytes 18 and 19 of a database say that there is a WAL next to it. The image contains what the WAL held.
  constexpr size_t kWrites = 18, kReads = 19;
  constexpr char kNoLog = 1;
  if (bytes.size() > kReads) bytes[kWrites] = bytes[kReads] = kNoLog;
  return bytes;
}

absl::StatusOr<StoreInfo> check_image(const std::string& bytes) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(":memory:", &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  const Database database(raw);
  if (code != SQLITE_OK) return sqlite_status(raw, code, "open a copy in memory");
  std::string copy = bytes;  // SQLite needs memory that it may write to.
  const auto size = static_cast<sqlite3_int64>(copy.size());
  const int loaded = sqlite3_deserialize(raw, "main", reinterpret_cast<unsigned char*>(copy.data()), size, size,
                                         SQLITE_DESERIALIZE_READONLY);
  if (loaded != SQLITE_OK) return sqlite_status(raw, loaded, "read a copy in memory");
  StoreInfo info;
  info.bytes = static_cast<int64_t>(bytes.size());
  TITAN_RETURN_IF_ERROR(annotate(read_all(raw, info), "the copy in memory"));
  return info;
}

}  // namespace

absl::StatusOr<StoreImage> image_of(sqlite3* database) {
  StoreImage image;
  TITAN_RETURN_IF_ERROR(execute(database, "BEGIN"));  // Keeps one state of the store from the first page to the last.
  absl::StatusOr<std::string> bytes = serialise(database);
  sqlite3_exec(database, "ROLLBACK", nullptr, nullptr, nullptr);
  if (!bytes.ok()) return bytes.status();
  image.bytes = *std::move(bytes);
  TITAN_ASSIGN_OR_RETURN(image.info, check_image(image.bytes));
  return image;
}

absl::StatusOr<StoreInfo> check_store(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  StoreInfo info;
  info.bytes = static_cast<int64_t>(fs::file_size(path, error));
  TITAN_ASSIGN_OR_RETURN(const Database database, open_to_read(path));
  TITAN_RETURN_IF_ERROR(annotate(read_all(database.get(), info), path));
  return info;
}

absl::StatusOr<StoreInfo> copy_store(const std::string& path, const std::string& copy) {
  TITAN_RETURN_IF_ERROR(make_empty_file(copy));
  copy_point.pass();
  {
    TITAN_ASSIGN_OR_RETURN(const Database database, open_to_read(path));
    const std::string quoted = absl::StrReplaceAll(copy, {{"'", "''"}});
    TITAN_RETURN_IF_ERROR(execute(database.get(), absl::StrCat("VACUUM INTO '", quoted, "'")));
  }
  copied_point.pass();
  TITAN_RETURN_IF_ERROR(sync_path(copy, O_RDWR));
  synced_point.pass();
  return check_store(copy);
}

namespace {

// Processes that open the restored store must get greater epochs than all that open the original, also after the
// backup. Those count up from here, far less than once a second, so the Unix time stays ahead of them.
absl::Status raise_epoch(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  const Database database(raw);
  if (code != SQLITE_OK) return sqlite_status(raw, code, absl::StrCat("open ", path));
  TITAN_ASSIGN_OR_RETURN(Meta meta, read_meta(raw));
  meta.epoch = std::max(meta.epoch, absl::ToUnixSeconds(absl::Now()));
  TITAN_ASSIGN_OR_RETURN(Statement set,
                         Statement::prepare(raw, "UPDATE meta SET value = ? WHERE CAST(key AS TEXT) = 'state'"));
  return set.bind(encode_state(meta)).run();
}

// Gives a file to the folder's owner: root restores into the state folder of a service, which belongs to the service's
// user.
absl::Status give_to_owner_of(const std::string& folder, const std::string& file) {
  struct stat owner {};
  if (::geteuid() != 0) return absl::OkStatus();
  if (::stat(folder.c_str(), &owner) != 0) return errno_status(errno, absl::StrCat("look at ", folder));
  if (::lchown(file.c_str(), owner.st_uid, owner.st_gid) != 0) return errno_status(errno, absl::StrCat("chown ", file));
  return absl::OkStatus();
}

absl::Status put_into(const StoreInfo& info, const std::string& copy, const std::string& temporary,
                      const std::string& target) {
  TITAN_ASSIGN_OR_RETURN(const StoreInfo written, copy_store(copy, temporary));
  if (written.revision != info.revision || written.cluster != info.cluster) {
    return absl::DataLossError(absl::StrCat(temporary, " differs from ", copy));
  }
  restored_point.pass();
  TITAN_RETURN_IF_ERROR(raise_epoch(temporary));
  const std::string folder = fs::path(target).parent_path().string();
  TITAN_RETURN_IF_ERROR(give_to_owner_of(folder, temporary));
  raised_point.pass();
  if (::rename(temporary.c_str(), target.c_str()) != 0) return errno_status(errno, absl::StrCat("rename ", temporary));
  renamed_point.pass();
  return sync_path(folder, O_RDONLY | O_DIRECTORY);
}

}  // namespace

absl::StatusOr<StoreInfo> restore_store(const std::string& copy, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const StoreInfo info, check_store(copy));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return errno_status(error.value(), absl::StrCat("create ", folder));
  const fs::directory_iterator inside(folder, error);
  if (error) return errno_status(error.value(), absl::StrCat("list ", folder));
  if (inside != fs::directory_iterator()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state folder ", folder, " is not empty (", inside->path().filename().string(),
                     " is there): a store is never replaced. Stop its controller and move the contents elsewhere, "
                     "or choose another folder"));
  }
  if (::chmod(folder.c_str(), 0700) != 0) return errno_status(errno, absl::StrCat("chmod ", folder));
  const std::string target = absl::StrCat(folder, "/", kDatabaseName), temporary = target + ".restoring";
  const absl::Status put = put_into(info, copy, temporary, target);
  if (!put.ok()) (void)::unlink(temporary.c_str());
  if (!put.ok()) return put;
  return info;
}

}  // namespace titan::store
