#pragma once

// Runs one job on private daemons of this machine, in a folder that is locked while in use.

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/cli/client.h"
#include "controller/cli/globals.h"
#include "controller/cli/job_source.h"
#include "controller/cli/local_cluster.h"
#include "controller/cli/watch.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// The folder of one `titanctl run`: state and logs of its private daemons and its ranks. It is locked while this object
// lives, so that the cleanup of a later run leaves it alone.
class RunFolder {
 public:
  // Makes `base`/run-XXXXXX. Errors: Internal, naming XDG_CACHE_HOME.
  static absl::StatusOr<std::unique_ptr<RunFolder>> make(const std::string& base);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  // Folder of the rank logs of the last attempt; "" when no rank started.
  std::string rank_logs() const;
  void remove();
  // Protects the folder from the cleanup of later runs.
  void keep();

 private:
  RunFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;
};

// Returns $XDG_CACHE_HOME/titan, or without that variable ~/.cache/titan, or if that cannot be written titan-UID in the
// folder for temporary files, which must then belong to this user; made when missing. It is not the dump folder, which
// may be a network file system, while SQLite needs a local one. Errors: those of the last folder that was tried.
absl::StatusOr<std::string> run_base();

// Limit on the folders of failed runs; a later run removes the rest.
inline constexpr size_t kMaxRunFolders = 10;

// Removes folders of runs that ended: all but the newest kMaxRunFolders, and of those the ones that ended more than a
// day before `now`, except for the newest few. Leaves folders that are in use or were to be kept.
void clean_run_folders(const std::string& base, absl::Time now);

// One job under a private controller and worker.
class LocalJob {
 public:
  // `globals` and `stopper` must outlive this object. A daemon that ends on its own cancels `stopper`, which other
  // threads may cancel too.
  LocalJob(const Globals& globals, Stopper& stopper) : globals_(globals), stopper_(stopper) {}
  ~LocalJob() { stop(); }
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts the daemons with their state in `folder` and a device for each of the job's processes, and creates the job.
  // Errors: those of the processes and of the call.
  absl::Status start(const std::string& folder, const Prepared& job);
  // Valid after start().
  ControllerClient& client() { return *client_; }
  const std::string& name() const { return name_; }

  // Waits like watch_job(). Errors: Cancelled by the stopper; Internal, naming its log, when a daemon ended.
  absl::StatusOr<v1::Job> wait(const std::function<bool(const v1::Job&)>& seen);

  // Requests the job's end, within `timeout` or the command line's; may be called on any thread. Errors:
  // FailedPrecondition when no job runs; those of the call.
  absl::Status cancel(bool now, std::optional<absl::Duration> timeout = std::nullopt);
  bool runs();

  // Ends the ranks and the daemons; further calls do nothing.
  void stop();

 private:
  void daemon_failed(const std::string& text);
  std::string failure();

  const Globals& globals_;
  Stopper& stopper_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<ControllerClient> client_;
  std::string name_;
  std::mutex mutex_;
  bool runs_ = false;  // While true, cancel() finds a job.
  std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace titan::cli
