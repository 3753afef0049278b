#include "worker/node/daemon/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/host/file_io.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "worker/node/daemon/attempt_json.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Phase = AttemptRecord::Phase;

constexpr char kLeaderEpoch[] = "/leader_epoch", kLeaderEpochCopy[] = "/leader_epoch.copy";

// Returns the size of the folder's files. Skips links, which must not be followed where users write.
int64_t size_of(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    if (!fs::is_regular_file(item.symlink_status(error))) continue;
    const auto size = item.file_size(error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// Reads an id that this worker wrote. Errors: DataLoss for an invalid id, which is not replaced, because nobody would
// notice that.
absl::StatusOr<std::string> read_id(const std::string& path, absl::string_view remedy) {
  TITAN_ASSIGN_OR_RETURN(const std::string text, host::read_file(path));
  std::string id(absl::StripAsciiWhitespace(text));
  if (valid_uid(id)) return id;
  return absl::DataLossError(absl::StrCat(
      path, " is damaged: it holds ",
      text.empty() ? "nothing" : absl::StrCat("'", absl::CHexEscape(text.substr(0, 64)), "'"), "; ", remedy));
}

// Returns the number n of attempt-{n}; 0 if the folder has another name.
int attempt_number(const fs::path& folder) {
  int number = 0;
  const std::string name = folder.filename().string();
  const bool is_one = absl::StartsWith(name, "attempt-") && absl::SimpleAtoi(name.substr(8), &number) && number > 0;
  return is_one && name == absl::StrCat("attempt-", number) ? number : 0;
}

// Returns the highest attempt that has a run folder.
absl::StatusOr<int> highest_folder(const std::string& job) {
  int highest = 0;
  std::error_code error;
  for (fs::directory_iterator item(job, error), end; !error && item != end; item.increment(error)) {
    highest = std::max(highest, attempt_number(item->path()));
  }
  if (error) return errno_status(error.value(), absl::StrCat("list ", job));
  return highest;
}

// Reads a number; 0 if the file does not exist. Errors: DataLoss if it contains anything but a number.
absl::StatusOr<int64_t> read_number(const std::string& path) {
  const absl::StatusOr<std::string> text = host::read_file(path);
  if (absl::IsNotFound(text.status())) return 0;
  if (!text.ok()) return text.status();
  int64_t number = 0;
  if (absl::SimpleAtoi(*text, &number) && number >= 0) return number;
  return absl::DataLossError(absl::StrCat(path, " is damaged: it does not hold a number"));
}

// Creates a folder, and sets the mode even if it exists.
absl::Status make_folder(const std::string& path, mode_t mode) {
  const bool made = ::mkdir(path.c_str(), mode) == 0 || errno == EEXIST;
  if (!made || ::chmod(path.c_str(), mode) != 0) return errno_status(errno, absl::StrCat("create ", path));
  return absl::OkStatus();
}

void strip_folder(const std::string& folder) {
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    const std::string name = item.path().filename().string();
    const bool temporary = name.find(".events.jsonl") != std::string::npos ||
                           name.find(".beacon") != std::string::npos || name.find(".flight") != std::string::npos ||
                           name == "shim.sock" || name == "shim.lock" || name == "offsets.json" ||
                           item.path().extension() == ".new";
    std::error_code ignored;
    if (temporary) fs::remove(item.path(), ignored);
  }
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::open(const std::string& path) {
  std::error_code error;
  const std::string whole = fs::absolute(path, error).lexically_normal().string();
  fs::create_directories(whole, error);
  if (error) return errno_status(error.value(), absl::StrCat("create state folder ", whole));
  // Only the owner may read it: configurations and logs may contain secrets. Ranks of other users pass through to their
  // folders.
  TITAN_RETURN_IF_ERROR(make_folder(whole, fs::exists(whole + "/ranks", error) ? 0711 : 0700));
  for (const char* inside : {"/jobs", "/trash"}) TITAN_RETURN_IF_ERROR(make_folder(whole + inside, 0700));
  host::Descriptor lock(::open((whole + "/daemon.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::fchmod(lock.get(), 0600) != 0)  // Anyone who can open the lock file could hold the lock.
    return errno_status(errno, absl::StrCat("open ", whole, "/daemon.lock"));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("another titan-worker uses the state folder ", whole, ": stop it, or give each its own --state"));
  }
  const absl::StatusOr<std::string> known = read_id(
      whole + "/instance",
      "if you remove it, the controller treats this folder as a new one, which may register once the old one is "
      "lost");
  if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
  const std::string instance = known.ok() ? *known : host::random_hex(16);
  if (!known.ok()) TITAN_RETURN_IF_ERROR(host::replace_file(whole + "/instance", instance, /*durable=*/true, 0600));
  TITAN_ASSIGN_OR_RETURN(storage::FolderGuard guard,
                         storage::FolderGuard::open(whole, {"daemon.lock", "instance", "jobs"}));
  return StateFolder(whole, std::move(lock), instance, std::move(guard));
}

absl::StatusOr<std::string> StateFolder::claim_for(const std::string& node) const {
  const std::string path = path_ + "/node";
  const absl::StatusOr<std::string> owner =
      read_id(path, absl::StrCat("write into it the id of the node that owns the attempts in that folder (",
                                 "this worker was started as node ", node, ")"));
  if (!owner.ok() && !absl::IsNotFound(owner.status())) return owner.status();
  if (owner.ok() && *owner == node) return std::string();
  const std::string former = owner.ok() ? *owner : "";  // Older versions did not record the node.
  TITAN_ASSIGN_OR_RETURN(const std::vector<Item> all, read_all());
  const auto held = std::count_if(all.begin(), all.end(), [](const Item& item) {
    return !item.record.ok() || item.record->phase != Phase::kForgotten;
  });
  if (!former.empty() && held > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state folder ", path_, " is node ", former, "'s and holds ", counted(held, "attempt"),
                     " of that node, whose ranks may still run: start titan-worker with --node ", former,
                     " (a host that was renamed needs it), or give node ", node, " a separate --state"));
  }
  const absl::Status written = host::replace_file(path, node, /*durable=*/true, 0600);
  // A full disk must not separate a worker from its ranks when the folder is of an older version.
  if (!written.ok() && !(former.empty() && absl::IsResourceExhausted(written))) return written;
  return former;
}

absl::StatusOr<std::string> StateFolder::cluster() const {
  absl::StatusOr<std::string> text =
      read_id(path_ + "/cluster",
              "write the id of this worker's cluster there (`titanctl cluster info`), or remove it "
              "and the worker joins the cluster of the first controller that answers");
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

absl::Status StateFolder::join(const std::string& cluster) const {
  TITAN_RETURN_IF_ERROR(check_same());
  return host::replace_file(path_ + "/cluster", cluster, /*durable=*/true, 0600);
}

// There are two files, both written before a leader is obeyed. If one is damaged, the other is at least as new.
absl::StatusOr<int64_t> StateFolder::leader_epoch(std::string* damage) const {
  const absl::StatusOr<int64_t> first = read_number(path_ + kLeaderEpoch);
  const absl::StatusOr<int64_t> second = read_number(path_ + kLeaderEpochCopy);
  if (first.ok() && second.ok()) return std::max(*first, *second);
  const absl::Status bad = first.ok() ? second.status() : first.status();
  const int64_t known = first.ok() ? *first : second.value_or(0);
  if (known == 0) {
    return absl::Status(bad.code(), absl::StrCat(bad.message(),
                                                 ". An older leader must not be obeyed: write the epoch of the present "
                                                 "leader there (the journals of the node's other workers and of the "
                                                 "controllers name it), or remove the file when only one controller "
                                                 "ever led"));
  }
  if (damage != nullptr)
    *damage = absl::StrCat(bad.message(), "; the leader's epoch ", known, " is known from its copy");
  return known;
}

absl::Status StateFolder::write_leader_epoch(int64_t epoch) const {
  TITAN_RETURN_IF_ERROR(check_same());
  for (const char* file : {kLeaderEpochCopy, kLeaderEpoch}) {
    TITAN_RETURN_IF_ERROR(host::replace_file(path_ + file, absl::StrCat(epoch), /*durable=*/true, 0600));
  }
  return absl::OkStatus();
}

std::string StateFolder::run_folder(const AttemptKey& key) const {
  return absl::StrCat(path_, "/jobs/", key.job_uid, "/attempt-", key.number);
}

std::string StateFolder::own_rank_folder(const AttemptKey& key) const {
  return absl::StrCat(path_, "/ranks/", key.job_uid, "-", key.number);
}

std::string StateFolder::rank_folder(const AttemptKey& key) const {
  std::string own = own_rank_folder(key);
  return ::access(own.c_str(), F_OK) == 0 ? own : run_folder(key);
}

absl::StatusOr<std::string> StateFolder::make_rank_folder(const AttemptKey& key, uid_t uid, gid_t gid) const {
  const sync::Lock lock(*mutex_);
  std::string own = own_rank_folder(key);
  TITAN_RETURN_IF_ERROR(make_folder(path_ + "/ranks", 0711));
  TITAN_RETURN_IF_ERROR(make_folder(path_, 0711));
  TITAN_RETURN_IF_ERROR(make_folder(own, 0700));
  if (::lchown(own.c_str(), uid, gid) != 0) return errno_status(errno, absl::StrCat("give ", own, " to its user"));
  return own;
}

absl::StatusOr<int> StateFolder::highest_attempt(const std::string& job_uid, std::string* damage) const {
  const std::string job = absl::StrCat(path_, "/jobs/", job_uid), path = job + "/fence";
  const absl::StatusOr<int64_t> number = read_number(path);
  if (number.ok() && *number <= std::numeric_limits<int>::max()) return static_cast<int>(*number);
  if (!number.ok() && !absl::IsDataLoss(number.status())) {
    return absl::DataLossError(absl::StrCat(path, " cannot be read (", number.status().message(),
                                            "), so an older attempt of this job might run alongside a newer one: "
                                            "remove it when no attempt of the job runs here"));
  }
  TITAN_ASSIGN_OR_RETURN(const int highest, highest_folder(job));
  if (damage != nullptr) {
    *damage = absl::StrCat(path,
                           " is damaged: it does not hold the number of an attempt; taken from the run folders "
                           "next to it, of which the highest is attempt ",
                           highest);
  }
  return highest;
}

absl::StatusOr<int> StateFolder::raise_fence(const AttemptKey& key, std::string* damage) const {
  const sync::Lock lock(*mutex_);
  // A folder that replaced the original has lost all fences, so a fence must not be raised in it.
  TITAN_RETURN_IF_ERROR(check_same());
  std::string bad;
  TITAN_ASSIGN_OR_RETURN(const int known, highest_attempt(key.job_uid, &bad));
  const int highest = std::max(known, key.number);
  if (known > key.number && bad.empty()) return highest;
  const std::string folder = absl::StrCat(path_, "/jobs/", key.job_uid);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return errno_status(error.value(), absl::StrCat("create ", folder));
  TITAN_RETURN_IF_ERROR(host::replace_file(folder + "/fence", absl::StrCat(highest), /*durable=*/true));
  if (damage != nullptr) *damage = std::move(bad);
  return highest;
}

// Moves the folder to the trash in one step. Deleting, which may take long, comes later. The caller holds the mutex.
absl::Status StateFolder::set_aside(const std::string& folder) const {
  std::error_code error;
  if (!fs::exists(folder, error)) return absl::OkStatus();
  fs::rename(folder, absl::StrCat(path_, "/trash/", host::random_hex(16)), error);
  if (error) return errno_status(error.value(), absl::StrCat("move away ", folder));
  return absl::OkStatus();
}

absl::Status StateFolder::set_all_aside(const AttemptKey& key) const {
  absl::Status status = set_aside(run_folder(key));
  status.Update(set_aside(own_rank_folder(key)));
  return status;
}

absl::Status StateFolder::add(const AttemptRecord& record) const {
  const std::string folder = run_folder(record.key);
  const sync::Lock lock(*mutex_);
  TITAN_RETURN_IF_ERROR(check_same());
  TITAN_RETURN_IF_ERROR(set_all_aside(record.key));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return errno_status(error.value(), absl::StrCat("create ", folder));
  return save(record);
}

void StateFolder::remove(const AttemptKey& key) const {
  const sync::Lock lock(*mutex_);
  (void)set_all_aside(key);
}

absl::Status StateFolder::save(const AttemptRecord& record) const {
  return host::replace_file(run_folder(record.key) + "/attempt.json", to_json(record).dump());
}

// Rebuilds a damaged record in memory; see rebuild_record().
StateFolder::Item StateFolder::item_of(const std::string& folder, const std::string& job_uid,
                                       const absl::StatusOr<std::string>& text) const {
  Item item{folder, text.ok() ? record_from_json(json::parse(*text, nullptr, false)) : text.status(), ""};
  // Files are written and deleted where the record says, so the record must name this folder.
  if (item.record.ok() && run_folder(item.record->key) != folder) {
    item.record = absl::DataLossError("it belongs to another attempt");
  }
  if (item.record.ok()) return item;
  const AttemptKey key = {job_uid, attempt_number(folder)};
  if (run_folder(key) != folder || !valid_uid(job_uid)) {
    item.damage = absl::StrCat(folder, "/attempt.json: not the record of an attempt (", item.record.status().message(),
                               "), and this is not the folder of an attempt: it is ignored. Remove the folder");
    return item;
  }
  RebuiltRecord rebuilt = rebuild_record(key, folder, std::string(item.record.status().message()));
  item.record = std::move(rebuilt.record);
  item.damage = std::move(rebuilt.message);
  return item;
}

// Reads every run folder that has a record.
absl::StatusOr<std::vector<StateFolder::Item>> StateFolder::read_all() const {
  std::vector<Item> all;
  std::error_code error;
  fs::directory_iterator jobs(path_ + "/jobs", error);
  if (error) return errno_status(error.value(), absl::StrCat("list ", path_, "/jobs"));
  for (const auto& job : jobs) {
    fs::directory_iterator attempts(job.path(), error);
    const bool none = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    if (error && !none) return errno_status(error.value(), absl::StrCat("list ", job.path().string()));
    if (error) continue;
    for (const auto& attempt : attempts) {
      const absl::StatusOr<std::string> text = host::read_file((attempt.path() / "attempt.json").string());
      const bool is_folder = fs::is_directory(attempt.path(), error);
      const bool is_gone = error == std::errc::no_such_file_or_directory;
      if (error && !is_gone) return errno_status(error.value(), absl::StrCat("look at ", attempt.path().string()));
      if (!is_folder || absl::IsNotFound(text.status())) continue;
      all.push_back(item_of(attempt.path().string(), job.path().filename().string(), text));
    }
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> StateFolder::repair_records() const {
  TITAN_ASSIGN_OR_RETURN(const std::vector<Item> all, read_all());
  std::vector<std::string> problems;
  for (const Item& item : all) {
    if (item.damage.empty()) continue;
    problems.push_back(item.damage);
    if (!item.record.ok()) continue;
    // If it cannot be written, the next reader rebuilds it again.
    (void)::rename((item.folder + "/attempt.json").c_str(), (item.folder + "/attempt.json.damaged").c_str());
    if (!save(*item.record).ok())
      (void)::rename((item.folder + "/attempt.json.damaged").c_str(), (item.folder + "/attempt.json").c_str());
  }
  return problems;
}

std::vector<AttemptRecord> StateFolder::load_all() const {
  std::vector<AttemptRecord> records;
  for (Item& item : read_all().value_or(std::vector<Item>())) {
    if (item.record.ok()) records.push_back(*std::move(item.record));
  }
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return records;
}

// Returns false if the folder was created again after the record was read.
bool StateFolder::discard(const AttemptRecord& record) const {
  const std::string folder = run_folder(record.key);
  const sync::Lock lock(*mutex_);
  const absl::StatusOr<std::string> text = host::read_file(folder + "/attempt.json");
  const absl::StatusOr<AttemptRecord> now =
      text.ok() ? record_from_json(json::parse(*text, nullptr, false)) : text.status();
  return now.ok() && now->phase == Phase::kForgotten && set_all_aside(record.key).ok();
}

// Removes the job's folder when only the fence is left in it; the job ended long ago.
void StateFolder::remove_fence(const std::string& job_uid) const {
  const fs::path job = absl::StrCat(path_, "/jobs/", job_uid);
  const sync::Lock lock(*mutex_);
  std::error_code error;
  if (std::distance(fs::directory_iterator(job, error), fs::directory_iterator()) == 1) fs::remove_all(job, error);
}

void StateFolder::empty_trash() const {
  std::error_code error;
  for (const auto& item : fs::directory_iterator(path_ + "/trash", error)) {
    std::error_code ignored;
    fs::remove_all(item.path(), ignored);
  }
}

void StateFolder::remove_old(absl::Duration age, int64_t bytes) const {
  struct Item {
    AttemptRecord record;
    fs::file_time_type time;
    int64_t size;
  };
  std::vector<Item> items;
  std::error_code error;
  for (const AttemptRecord& record : load_all()) {
    if (record.phase != Phase::kForgotten) continue;
    const fs::path folder = run_folder(record.key);
    items.push_back({record, fs::last_write_time(folder / "attempt.json", error),
                     size_of(folder) + size_of(own_rank_folder(record.key))});
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.time < b.time; });
  int64_t total = 0;
  for (const Item& item : items) total += item.size;
  const auto oldest = fs::file_time_type::clock::now() - absl::ToChronoSeconds(age);
  for (const Item& item : items) {
    if (item.time >= oldest && total <= bytes) break;
    if (!discard(item.record)) continue;
    total -= item.size;
    if (item.time < oldest) remove_fence(item.record.key.job_uid);
  }
  empty_trash();
}

void StateFolder::strip(const AttemptKey& key) const {
  strip_folder(run_folder(key));
  strip_folder(own_rank_folder(key));
}

std::string group_prefix(const StateFolder& state) {
  return absl::StrCat("titan-", state.instance().substr(0, 12), "-");
}

}  // namespace titan::daemon
