// Maintenance of a SQLite store's file: folds its WAL, shrinks and copies it, and rescues it when it was deleted.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/connection.h"

namespace titan::store {

namespace {

failpoint::Failpoint fold_point("store.fold"), folded_point("store.folded");

}  // namespace

absl::Status SqliteStore::run(const std::function<absl::Status()>& task) {
  std::promise<absl::Status> done;
  const bool posted = writer_->post([&] {
    const absl::Status status = task();
    if (absl::IsInternal(status)) writer_->fail(status);  // Nothing is tried again, as with commits.
    done.set_value(status);
  });
  return posted ? done.get_future().get() : absl::UnavailableError("store: closing");
}

absl::StatusOr<int64_t> SqliteStore::pragma(const char* query) {
  TITAN_ASSIGN_OR_RETURN(Statement read, Statement::prepare(write_->database.get(), query));
  TITAN_RETURN_IF_ERROR(read.step().status());
  return read.integer(0);
}

absl::Status SqliteStore::shrink() {
  constexpr char kStep[] = "PRAGMA incremental_vacuum(1000)";
  bool more = true;
  while (more) {
    TITAN_RETURN_IF_ERROR(run([&]() -> absl::Status {
      TITAN_RETURN_IF_ERROR(in_transaction([&] { return compact(0); }));
      more = meta_.compacted_row < meta_.last_row && !compaction_stopped_;
      return absl::OkStatus();
    }));
  }
  for (int64_t left = 1, before = 0; left > 0 && left != before;) {
    TITAN_RETURN_IF_ERROR(run([&]() -> absl::Status {
      before = left;
      TITAN_RETURN_IF_ERROR(execute(write_->database.get(), kStep));
      TITAN_ASSIGN_OR_RETURN(left, pragma("PRAGMA freelist_count"));
      return absl::OkStatus();
    }));
  }
  return run([this] { return execute(write_->database.get(), "PRAGMA wal_checkpoint(TRUNCATE)"); });
}

// Folds the WAL into the database file. Leaves it for later on a full disk or while another connection uses the file.
// After any other error the store must end.
absl::Status SqliteStore::checkpoint_wal() {
  fold_point.pass();
  const absl::Status folded = execute(write_->database.get(), "PRAGMA wal_checkpoint(PASSIVE)");
  folded_point.pass();
  return absl::IsResourceExhausted(folded) || absl::IsUnavailable(folded) ? absl::OkStatus() : folded;
}

// Keeps the database file up to date and the WAL small. Returns some free space to the file system if there is much.
void SqliteStore::idle() {
  constexpr int64_t kFew = 1000;
  const absl::StatusOr<int64_t> free = pragma("PRAGMA freelist_count"), pages = pragma("PRAGMA page_count");
  absl::Status status;
  if (free.ok() && pages.ok() && *free > std::max(kFew, *pages / 4)) {
    status = execute(write_->database.get(), "PRAGMA incremental_vacuum(1000)");
  }
  if (!absl::IsInternal(status)) status = checkpoint_wal();
  if (absl::IsInternal(status)) writer_->fail(status);
}

absl::StatusOr<StoreInfo> SqliteStore::back_up(const std::string& copy) const {
  absl::StatusOr<StoreInfo> made = copy_store(path_, copy);
  if (!absl::IsDataLoss(made.status())) return made;
  TITAN_RETURN_IF_ERROR(check().status());
  auto* self = const_cast<SqliteStore*>(this);  // NOLINT(cppcoreguidelines-pro-type-const-cast): waits, nothing more.
  TITAN_RETURN_IF_ERROR(self->run([] { return absl::OkStatus(); }));
  if (::truncate(copy.c_str(), 0) != 0) return errno_status(errno, absl::StrCat("truncate ", copy));
  return copy_store(path_, copy);
}

// The rest handles a store whose file was deleted or replaced while it was open.

namespace {

namespace fs = std::filesystem;

constexpr int kTries = 5;
constexpr auto kSettle = std::chrono::milliseconds(200);

absl::Status write_durably(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", path));
  absl::Status status = host::write_all(fd, bytes, path);
  if (status.ok() && ::fsync(fd) != 0) status = errno_status(errno, absl::StrCat("write ", path));
  ::close(fd);
  return status.ok() ? storage::posix_files().sync_folder(fs::path(path).parent_path().string()) : status;
}

// A process that is still deleting the folder may delete the new file as well, so the write is checked and repeated.
absl::Status write_to_stay(const std::string& path, const std::string& bytes) {
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    std::error_code ignored;
    const fs::path folder = fs::path(path).parent_path();
    if (fs::create_directories(folder, ignored)) (void)::chmod(folder.c_str(), 0700);
    status = write_durably(path, bytes);
    std::this_thread::sleep_for(kSettle);
    if (status.ok() && ::access(path.c_str(), F_OK) == 0) return status;
    if (status.ok()) status = absl::UnavailableError(absl::StrCat(path, " was deleted each time that it was written"));
  }
  return status;
}

}  // namespace

absl::Status SqliteStore::lost_files() const {
  if (!guard_) return absl::OkStatus();
  const absl::Status same = guard_->check_same();
  return absl::IsFailedPrecondition(same) ? absl::InternalError(absl::StrCat("store: ", same.message()))
                                          : absl::OkStatus();  // Files that cannot be checked now may still be there.
}

void SqliteStore::check_files() {
  if (const absl::Status lost = lost_files(); !lost.ok()) writer_->fail(lost);
}

absl::StatusOr<StoreImage> SqliteStore::image() const {
  sync::Lock lock(read_mutex_);
  return image_of(read_->database.get());
}

// Writes all acknowledged data, which the open descriptors still reach, to a new file and returns a message that names
// it. It never uses the store's own name: a file that has this name now belongs to somebody else.
std::string SqliteStore::rescue() {
  const absl::StatusOr<StoreImage> image = image_of(write_->database.get());
  const std::string copy = absl::StrCat(path_, kRescued, absl::ToUnixSeconds(absl::Now()));
  absl::Status status = image.status();
  if (status.ok()) status = write_to_stay(copy, image->bytes);
  if (!status.ok()) return absl::StrCat("; what it held could not be saved: ", status.message());
  return absl::StrCat(
      "; the original was moved away or deleted. All acknowledged data (revision ", image->info.revision,
      ") was saved to ", copy, ": to continue with it, rename it to ", path_,
      " and start the controller again. If the original comes back, it has at most the same revision, and "
      "an older one once a controller has continued with the copy");
}

}  // namespace titan::store
