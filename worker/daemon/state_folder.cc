#include "worker/daemon/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "nlohmann/json.hpp"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Phase = AttemptRecord::Phase;

constexpr const char* kPhaseNames[] = {"preparing", "live", "ended", "refused", "forgotten"};

json to_json(const v1::RankExitReport& exit) {
  return {{"rank", exit.rank()},
          {"exit_code", exit.exit_code()},
          {"signal", exit.signal()},
          {"last_words", exit.last_words()},
          {"time_unix_nanos", exit.time_unix_nanos()},
          {"out_of_memory", exit.out_of_memory()},
          {"memory_limit_bytes", exit.memory_limit_bytes()},
          {"stop_reason", exit.stop_reason()}};
}

v1::RankExitReport exit_from_json(const json& from) {
  v1::RankExitReport exit;
  exit.set_rank(from.at("rank").get<int>());
  exit.set_exit_code(from.at("exit_code").get<int>());
  exit.set_signal(from.at("signal").get<int>());
  exit.set_last_words(from.at("last_words").get<std::string>());
  exit.set_time_unix_nanos(from.at("time_unix_nanos").get<int64_t>());
  exit.set_out_of_memory(from.at("out_of_memory").get<bool>());
  exit.set_memory_limit_bytes(from.value("memory_limit_bytes", int64_t{0}));
  exit.set_stop_reason(from.at("stop_reason").get<std::string>());
  return exit;
}

json to_json(const AttemptRecord& record) {
  json exits = json::array();
  for (const v1::RankExitReport& exit : record.exits) exits.push_back(to_json(exit));
  return {{"job_uid", record.key.job_uid},
          {"attempt", record.key.number},
          {"leader", record.leader},
          {"ranks", record.ranks},
          {"dump_folder", record.dump_folder},
          {"token", record.token},
          {"folder_id", record.folder_id},
          {"run_as", record.run_as},
          {"run_as_local", record.run_as_local},
          {"run_as_known", record.run_as_known},
          {"orphan_timeout_seconds", record.orphan_timeout_seconds},
          {"devices", record.devices},
          {"phase", kPhaseNames[static_cast<int>(record.phase)]},
          {"error_reason", record.error_reason},
          {"error_message", record.error_message},
          {"exits", std::move(exits)}};
}

absl::StatusOr<AttemptRecord> record_from_json(const json& from) {
  try {
    AttemptRecord record;
    record.key = {from.at("job_uid").get<std::string>(), from.at("attempt").get<int>()};
    record.leader = from.at("leader").get<bool>();
    record.ranks = from.at("ranks").get<std::vector<int>>();
    record.dump_folder = from.at("dump_folder").get<std::string>();
    record.token = from.at("token").get<std::string>();
    record.folder_id = from.value("folder_id", "");  // Older records have none.
    record.run_as = from.value("run_as", "");
    record.run_as_local = from.value("run_as_local", false);
    record.run_as_known = from.value("run_as_known", false);
    record.orphan_timeout_seconds = from.at("orphan_timeout_seconds").get<double>();
    record.devices = from.at("devices").get<std::vector<int>>();
    const std::string phase = from.at("phase").get<std::string>();
    const auto* const found = std::find(std::begin(kPhaseNames), std::end(kPhaseNames), phase);
    if (found == std::end(kPhaseNames)) return absl::DataLossError(absl::StrCat("unknown phase ", phase));
    record.phase = static_cast<Phase>(found - std::begin(kPhaseNames));
    record.error_reason = from.at("error_reason").get<std::string>();
    record.error_message = from.at("error_message").get<std::string>();
    for (const json& exit : from.value("exits", json::array())) record.exits.push_back(exit_from_json(exit));
    return record;
  } catch (const json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

std::string random_id() {
  unsigned char bytes[16];
  (void)!::getrandom(bytes, sizeof(bytes), 0);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(bytes), sizeof(bytes)));
}

// No links: they are not followed where users write.
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

// Also when it is there with other permissions.
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
  // Nobody else's business: configurations and logs may hold secrets. Ranks of other users pass through to their own.
  TITAN_RETURN_IF_ERROR(make_folder(whole, fs::exists(whole + "/ranks", error) ? 0711 : 0700));
  for (const char* inside : {"/jobs", "/trash"}) TITAN_RETURN_IF_ERROR(make_folder(whole + inside, 0700));
  shim::Descriptor lock(::open((whole + "/daemon.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::fchmod(lock.get(), 0600) != 0)  // Whoever can open it could hold it.
    return errno_status(errno, absl::StrCat("open ", whole, "/daemon.lock"));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("another titan-worker uses the state folder ", whole, ": stop it, or give each its own --state"));
  }
  const absl::StatusOr<std::string> known = shim::read_file(whole + "/instance");
  if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
  const std::string instance = known.ok() && !known->empty() ? *known : random_id();
  if (!known.ok()) TITAN_RETURN_IF_ERROR(shim::write_file(whole + "/instance", instance, /*durable=*/true, 0600));
  TITAN_ASSIGN_OR_RETURN(storage::FolderGuard guard,
                         storage::FolderGuard::open(whole, {"daemon.lock", "instance", "jobs"}));
  return StateFolder(whole, std::move(lock), instance, std::move(guard));
}

absl::StatusOr<std::string> StateFolder::claim_for(const std::string& node) const {
  const std::string path = path_ + "/node";
  absl::StatusOr<std::string> owner = shim::read_file(path);
  if (!owner.ok() && !absl::IsNotFound(owner.status())) return owner.status();
  if (owner.ok() && *owner == node) return std::string();
  const std::string former = owner.ok() ? *owner : "";  // An older version wrote none down.
  TITAN_ASSIGN_OR_RETURN(const Records all, read_all());
  const auto held = std::count_if(all.begin(), all.end(), [](const auto& item) {
    return !item.second.ok() || item.second->phase != Phase::kForgotten;
  });
  if (!former.empty() && held > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state folder ", path_, " is node ", former, "'s and holds ", counted(held, "attempt"),
                     " of that node, whose ranks may still run: start titan-worker with --node ", former,
                     " (a host that was renamed needs it), or give node ", node, " a --state of its own"));
  }
  const absl::Status written = shim::write_file(path, node, /*durable=*/true, 0600);
  // A full disk must not keep a worker of an older version's folder from its ranks.
  if (!written.ok() && !(former.empty() && absl::IsResourceExhausted(written))) return written;
  return former;
}

absl::StatusOr<std::string> StateFolder::cluster() const {
  absl::StatusOr<std::string> text = shim::read_file(path_ + "/cluster");
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

absl::Status StateFolder::join(const std::string& cluster) const {
  TITAN_RETURN_IF_ERROR(check_same());
  return shim::write_file(path_ + "/cluster", cluster, /*durable=*/true, 0600);
}

absl::StatusOr<int64_t> StateFolder::leader_epoch() const {
  const std::string path = path_ + "/leader_epoch";
  const absl::StatusOr<std::string> text = shim::read_file(path);
  if (absl::IsNotFound(text.status())) return 0;
  if (!text.ok()) return text.status();
  int64_t epoch = 0;
  if (!absl::SimpleAtoi(*text, &epoch)) return absl::DataLossError(absl::StrCat(path, " holds no number"));
  return epoch;
}

absl::Status StateFolder::write_leader_epoch(int64_t epoch) const {
  TITAN_RETURN_IF_ERROR(check_same());
  return shim::write_file(path_ + "/leader_epoch", absl::StrCat(epoch), /*durable=*/true, 0600);
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

absl::StatusOr<int> StateFolder::highest_attempt(const std::string& job_uid) const {
  const std::string path = absl::StrCat(path_, "/jobs/", job_uid, "/fence");
  const absl::StatusOr<std::string> text = shim::read_file(path);
  if (absl::IsNotFound(text.status())) return 0;
  if (!text.ok()) return text.status();
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number)) return absl::DataLossError(absl::StrCat(path, " holds no number"));
  return number;
}

absl::StatusOr<int> StateFolder::raise_fence(const AttemptKey& key) const {
  const sync::Lock lock(*mutex_);
  // In a new folder of the same name every fence is lost, and this one would be all that it knows.
  TITAN_RETURN_IF_ERROR(check_same());
  TITAN_ASSIGN_OR_RETURN(const int highest, highest_attempt(key.job_uid));
  if (highest > key.number) return highest;
  const std::string folder = absl::StrCat(path_, "/jobs/", key.job_uid);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return errno_status(error.value(), absl::StrCat("create ", folder));
  TITAN_RETURN_IF_ERROR(shim::write_file(folder + "/fence", absl::StrCat(key.number), /*durable=*/true));
  return key.number;
}

// Out of the way in one step; the deleting, which may take long, comes later. Call with the mutex held.
absl::Status StateFolder::set_aside(const std::string& folder) const {
  std::error_code error;
  if (!fs::exists(folder, error)) return absl::OkStatus();
  fs::rename(folder, absl::StrCat(path_, "/trash/", random_id()), error);
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
  return shim::write_file(run_folder(record.key) + "/attempt.json", to_json(record).dump());
}

// {its file, what it says} of every run folder that has a record.
absl::StatusOr<StateFolder::Records> StateFolder::read_all() const {
  Records all;
  std::error_code error;
  fs::directory_iterator jobs(path_ + "/jobs", error);
  if (error) return errno_status(error.value(), absl::StrCat("list ", path_, "/jobs"));
  for (const auto& job : jobs) {
    fs::directory_iterator attempts(job.path(), error);
    const bool none = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    if (error && !none) return errno_status(error.value(), absl::StrCat("list ", job.path().string()));
    if (error) continue;
    for (const auto& attempt : attempts) {
      const std::string file = (attempt.path() / "attempt.json").string();
      const absl::StatusOr<std::string> text = shim::read_file(file);
      const bool is_folder = fs::is_directory(attempt.path(), error);
      const bool is_gone = error == std::errc::no_such_file_or_directory;
      if (error && !is_gone) return errno_status(error.value(), absl::StrCat("look at ", attempt.path().string()));
      if (!is_folder || absl::IsNotFound(text.status())) continue;
      absl::StatusOr<AttemptRecord> record =
          text.ok() ? record_from_json(json::parse(*text, nullptr, false)) : text.status();
      // What is written and deleted for an attempt lies where its record says: nowhere but here.
      if (record.ok() && run_folder(record->key) != attempt.path().string()) {
        record = absl::DataLossError("it is of another attempt");
      }
      all.emplace_back(file, std::move(record));
    }
  }
  return all;
}

absl::Status StateFolder::check_records() const {
  TITAN_ASSIGN_OR_RETURN(const Records all, read_all());
  for (const auto& [file, record] : all) {
    if (record.ok()) continue;
    return absl::DataLossError(
        absl::StrCat(file, ": not the record of an attempt (", record.status().message(),
                     "); ranks of that attempt may still run here, and would share their ",
                     "devices with others: see that none does (pgrep -f titan-shim), then remove its folder"));
  }
  return absl::OkStatus();
}

std::vector<AttemptRecord> StateFolder::load_all() const {
  std::vector<AttemptRecord> records;
  for (auto& [file, record] : read_all().value_or(Records())) {
    if (record.ok()) records.push_back(*std::move(record));
  }
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return records;
}

// False when its folder was made anew since the record was read.
bool StateFolder::discard(const AttemptRecord& record) const {
  const std::string folder = run_folder(record.key);
  const sync::Lock lock(*mutex_);
  const absl::StatusOr<std::string> text = shim::read_file(folder + "/attempt.json");
  const absl::StatusOr<AttemptRecord> now =
      text.ok() ? record_from_json(json::parse(*text, nullptr, false)) : text.status();
  return now.ok() && now->phase == Phase::kForgotten && set_all_aside(record.key).ok();
}

// The fence goes with the last attempt: by now the job is long over.
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
