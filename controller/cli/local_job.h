#pragma once

// Runs one job on private daemons of this machine, in a folder that is locked while it is used.

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

// The folder of one `titanctl run`: its private daemons' state and logs, and those of the ranks. It is locked while
// this object lives, so that a later run's cleaning knows that it is in use.
class RunFolder {
 public:
  // Makes `base`/run-XXXXXX. Errors: Internal, naming XDG_CACHE_HOME.
  static absl::StatusOr<std::unique_ptr<RunFolder>> make(const std::string& base);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  // Where the ranks of the last attempt wrote their logs; "" when none began.
  std::string rank_logs() const;
  void remove();
  // Later runs leave it alone.
  void keep();

 private:
  RunFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;
};

// $XDG_CACHE_HOME/titan, else ~/.cache/titan, else, for a user without a home, titan-UID in the folder for temporary
// files, where it must be this user's alone; made when missing. Not the dump folder, which may be a network file
// system, while SQLite needs a local one. Errors: those of the last of them.
absl::StatusOr<std::string> run_base();

// Of runs that failed; a later one removes the rest.
inline constexpr size_t kMostRunFolders = 10;

// Removes folders of runs that ended: of the newest kMostRunFolders those that did so more than a day before `now`, but
// for a few, and all that are older. None that is in use and none that was asked to be kept.
void clean_run_folders(const std::string& base, absl::Time now);

// One job under a controller and a worker of its own.
class LocalJob {
 public:
  // `globals` must outlive it. A daemon that ends by itself cancels `stopper`, which other threads may cancel too.
  LocalJob(const Globals& globals, Stopper& stopper) : globals_(globals), stopper_(stopper) {}
  ~LocalJob() { stop(); }
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts the daemons with their state in `folder`, with as many devices as the job has processes, and creates the
  // job. Errors: of the processes and of the call.
  absl::Status start(const std::string& folder, const Prepared& job);
  // After start().
  Client& client() { return *client_; }
  const std::string& name() const { return name_; }

  // As watch_job(). Errors: Cancelled by the stopper; Internal, naming its log, when a daemon ended.
  absl::StatusOr<v1::Job> wait(const std::function<bool(const v1::Job&)>& seen);

  // On any thread: asks for the job's end, within `timeout` or the command line's. Errors: FailedPrecondition where no
  // job runs; of the call.
  absl::Status cancel(bool now, std::optional<absl::Duration> timeout = std::nullopt);
  bool runs();

  // Ends the ranks and the daemons; once.
  void stop();

 private:
  void daemon_failed(const std::string& text);
  std::string failure();

  const Globals& globals_;
  Stopper& stopper_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Client> client_;
  std::string name_;
  std::mutex mutex_;
  bool runs_ = false;  // cancel() finds a job.
  std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace titan::cli
