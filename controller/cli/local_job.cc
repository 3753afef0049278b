#include "controller/cli/local_job.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/validate.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = "/lock";
constexpr char kKeep[] = "/keep";
constexpr size_t kKeptAtLeast = 5;  // These stay, however old they are.
constexpr absl::Duration kKeptFor = absl::Hours(24);

// Returns the time of the newest change to the folder or its direct entries: logs grow until the end.
absl::Time last_change(const fs::path& folder) {
  time_t newest = 0;
  const auto look = [&newest](const fs::path& path) {
    struct stat found {};
    if (stat(path.c_str(), &found) == 0) newest = std::max(newest, found.st_mtime);
  };
  look(folder);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) look(entry.path());
  return absl::FromTimeT(newest);
}

// Returns whether a run holds the folder's lock, which the kernel frees however the run ends.
bool in_use(const std::string& folder) {
  const int fd = open((folder + kLock).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return held;
}

// Returns candidates for a user's private folders, best first. Without XDG_CACHE_HOME the last is in the system's
// folder for temporary files, which other users share: a user without a home (a service's, nobody) has no other.
std::vector<fs::path> private_places() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return {fs::path(cache) / "titan"};
  std::vector<fs::path> places;
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') places.push_back(fs::path(home) / ".cache/titan");
  places.push_back(fs::temp_directory_path() / absl::StrCat("titan-", getuid()));
  return places;
}

// Checks that only this user can write the folder: anybody may have made one with that name in the shared folder for
// temporary files.
absl::Status check_own(const fs::path& place) {
  struct stat found {};
  if (lstat(place.c_str(), &found) != 0) return errno_status(errno, absl::StrCat("look at ", place.string()));
  if (S_ISDIR(found.st_mode) && found.st_uid == geteuid() && (found.st_mode & 022) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(place.string(), " must be a folder of this user that nobody else can write to"));
}

absl::Status make_place(const fs::path& place) {
  std::error_code error;
  fs::create_directories(place.parent_path(), error);
  if (!error && mkdir(place.c_str(), 0700) != 0 && errno != EEXIST) error = {errno, std::generic_category()};
  if (!error && access(place.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (error) return errno_status(error.value(), absl::StrCat("write to ", place.string()));
  return place.parent_path() == fs::temp_directory_path() ? check_own(place) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> run_base() {
  absl::Status why;
  for (const fs::path& place : private_places()) {
    why = make_place(place);
    if (why.ok()) return place.string();
  }
  return annotate(why, "no folder for the files of a run (set XDG_CACHE_HOME to use another)");
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::make(const std::string& base) {
  std::error_code error;
  fs::create_directories(base, error);
  std::string pattern = base + "/run-XXXXXX";
  if (error || mkdtemp(pattern.data()) == nullptr) {
    return absl::InternalError(
        absl::StrCat("cannot make a folder under ", base, "; set XDG_CACHE_HOME to use another folder"));
  }
  const int lock = open((pattern + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (lock >= 0) close(lock);
    return absl::InternalError(
        absl::StrCat("cannot lock ", pattern, kLock, "; set XDG_CACHE_HOME to use another folder"));
  }
  return std::unique_ptr<RunFolder>(new RunFolder(pattern, lock));
}

RunFolder::~RunFolder() { close(lock_); }

std::string RunFolder::rank_logs() const {
  std::pair<fs::file_time_type, std::string> newest{fs::file_time_type::min(), ""};
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "rank-") || !absl::EndsWith(name, ".log")) continue;
    newest = std::max(newest, {entry.last_write_time(error), entry.path().parent_path().string()});
  }
  return newest.second;
}

void RunFolder::remove() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void RunFolder::keep() { std::ofstream(path_ + kKeep).flush(); }

void clean_run_folders(const std::string& base, absl::Time now) {
  std::vector<std::pair<absl::Time, std::string>> ended;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base, error)) {
    const std::string path = entry.path().string();
    if (!absl::StartsWith(entry.path().filename().string(), "run-") || !entry.is_directory(error)) continue;
    if (!in_use(path) && !fs::exists(path + kKeep, error)) ended.emplace_back(last_change(path), path);
  }
  std::sort(ended.rbegin(), ended.rend());
  for (size_t i = kKeptAtLeast; i < ended.size(); ++i) {
    if (i >= kMaxRunFolders || now - ended[i].first > kKeptFor) fs::remove_all(ended[i].second, error);
  }
}

absl::Status LocalJob::start(const std::string& folder, const Prepared& job) {
  const config::JobConfig& config = job.loaded.config;
  const auto on_failure = [this](const std::string& text) { daemon_failed(text); };
  TITAN_ASSIGN_OR_RETURN(cluster_, LocalCluster::start({.folder = folder,
                                                        .device = config.resources.device,
                                                        .devices = config::processes(config),
                                                        .on_failure = on_failure}));
  client_ = std::make_unique<ControllerClient>(cluster_->controller(), globals_.timeout);
  v1::CreateJobRequest request;
  *request.mutable_spec() = to_spec(job);
  request.set_request_id(make_request_id());
  TITAN_ASSIGN_OR_RETURN(const v1::Job created, client_->create_job(request));
  const std::lock_guard lock(mutex_);
  name_ = created.name();
  runs_ = true;
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> LocalJob::wait(const std::function<bool(const v1::Job&)>& seen) {
  auto job = watch_job(*client_, name_, absl::InfiniteFuture(), stopper_, seen);
  if (job.ok()) return job;
  if (const std::string text = failure(); !text.empty()) return absl::InternalError(text);
  return job;
}

absl::Status LocalJob::cancel(bool now, std::optional<absl::Duration> timeout) {
  const std::lock_guard lock(mutex_);
  if (!runs_) return absl::FailedPreconditionError("no job runs");
  ControllerClient client(client_->address(), timeout.value_or(globals_.timeout));
  return client.cancel_job(name_, now).status();
}

bool LocalJob::runs() {
  const std::lock_guard lock(mutex_);
  return runs_;
}

void LocalJob::stop() {
  {
    const std::lock_guard lock(mutex_);
    runs_ = false;
  }
  cluster_.reset();  // Waits for a daemon_failed() that still runs.
}

void LocalJob::daemon_failed(const std::string& text) {
  {
    const std::lock_guard lock(failure_mutex_);
    failure_ = text;
  }
  stopper_.cancel();
}

std::string LocalJob::failure() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace titan::cli
