#pragma once

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
#include "controller/cli/local_cluster.h"
#include "controller/cli/watch.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// One job under a controller and a worker of its own.
class LocalJob {
 public:
  // `globals` must outlive it. A daemon that ends by itself cancels `stopper`, which other threads may cancel too.
  LocalJob(const Globals& globals, Stopper& stopper) : globals_(globals), stopper_(stopper) {}
  ~LocalJob() { stop(); }
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts the daemons with their state in `folder` and creates the job. `devices`: CPU ranks that the node takes.
  // Errors: of the processes and of the call.
  absl::Status start(const std::string& folder, v1::JobSpec spec, int devices);
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
