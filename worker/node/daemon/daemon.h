#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rank_protocol/beacon.h"
#include "common/service/journal/journal.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/credentials.h"
#include "common/service/systemd/service.h"
#include "titan/v1/worker.pb.h"
#include "worker/node/core/node_core.h"
#include "worker/node/daemon/file_watcher.h"
#include "worker/node/daemon/gpu_watch.h"
#include "worker/node/daemon/granted_folders.h"
#include "worker/node/daemon/loop.h"
#include "worker/node/daemon/lost_contact.h"
#include "worker/node/daemon/metrics.h"
#include "worker/node/daemon/resources.h"
#include "worker/node/daemon/serial_executor.h"
#include "worker/node/daemon/session.h"
#include "worker/node/daemon/shim_link.h"
#include "worker/node/daemon/state_folder.h"
#include "worker/node/shim/control_group.h"
#include "worker/node/shim/spec.h"

namespace titan::daemon {

struct DaemonOptions {
  std::vector<std::string> controllers;                                          // Addresses; at least one.
  std::map<std::string, std::shared_ptr<grpc::ChannelCredentials>> credentials;  // By address.
  rpc::Security security;                                                        // Sources of the credentials.
  std::string node;
  std::string address;
  std::string store_address;  // Address on which stores listen. Empty: `address`.
  std::string state;
  std::string devices = "auto";
  std::string rank_binary;
  std::string shim_binary;
  int64_t log_max_bytes = 256 << 20;                   // Limit of each rank's log.
  absl::Duration log_retention = absl::Hours(7 * 24);  // Age at which logs of forgotten attempts are deleted.
  int64_t log_retention_bytes = int64_t{10} << 30;
  int64_t memory_per_rank_bytes = 0;  // Memory limit per rank, for the sum of an attempt's ranks on this node. 0: none.
  bool stop_ranks_on_exit = false;
  absl::Duration stop_grace = absl::Seconds(30);
  double token_timeout_seconds = 5;
  std::vector<std::string> pass_env;  // Further environment variables that ranks receive; see rank_environment.h.
  Grants grants;                      // Folders of this node that jobs may use.
  std::string certificate;            // This daemon's certificate; the log warns before it expires. Empty: none.
  // User that all ranks run as. Empty: the user that submitted the job. See worker/node/shim/spec.h.
  std::string rank_user;
  std::map<std::string, std::string> labels;  // Labels of the node, for the controller.
  bool adopt_cluster = false;  // Join the cluster of the first controller that answers, even if it is another cluster.
};

// Outputs that report the daemon's state.
struct DaemonTelemetry {
  WorkerMetrics& metrics;
  systemd::Notifier& service;
  journal::Journal& journal;
};

// titan-worker, the control plane's agent on this node. Carries out what worker/node/core decides: everything that
// happens is an input of the core, fed on the loop thread. Work on files and processes runs on other threads. All
// durable state is in the state folder, so the daemon may be killed at any moment: the next one adopts the shims and
// sends the events that the controller has not acknowledged.
class Daemon {
 public:
  // Errors: InvalidArgument (options), AlreadyExists (another daemon uses the state folder), FailedPrecondition
  // (devices, control groups), and I/O errors.
  static absl::StatusOr<std::unique_ptr<Daemon>> create(DaemonOptions options, const DaemonTelemetry& telemetry);
  ~Daemon();

  // Adopts what runs, connects, and serves until SIGTERM or SIGINT, which the caller must block before any thread
  // starts. With stop_ranks_on_exit the first signal lets the ranks save and stop, and a second SIGINT kills them.
  // Without it the ranks keep training.
  void run();

 private:
  struct Link {
    node::Op number = 0;
    std::unique_ptr<ShimLink> link;
  };
  using Beacons = std::map<int, std::unique_ptr<rank_protocol::BeaconReader>>;

  Daemon(DaemonOptions options, const DaemonTelemetry& telemetry, std::shared_ptr<const StateFolder> state,
         Resources resources, std::optional<shim::GroupHome> groups, node::NodeCore core);
  shim::Spec make_spec(const AttemptRecord& record) const;
  void adopt_all();
  void feed(const node::Input& input);
  void read_beacons();
  void on_timer();
  void on_lost(int64_t session, const std::string& why, const std::string& reason);
  void on_shim_message(const AttemptKey& key, node::Op link, const nlohmann::json& message);
  void add_link(const AttemptKey& key, node::Op number, host::Descriptor socket, bool subscribe);
  void log_about(const AttemptKey& key, journal::Level level, const std::string& event, const std::string& message);
  void update_metrics();
  void check_state_folder();
  void take_state_look(const std::string& unusable);
  void read_gpus();
  void notify_service();  // Reports to systemd that the loop is alive, and the node's status; reschedules itself.
  void watch_signals();
  std::string run_folder(const AttemptKey& key) const { return state_->run_folder(key); }
  std::string rank_folder(const AttemptKey& key) const { return state_->rank_folder(key); }
  // Runs `work` in a lane and feeds its result to the core.
  template <typename Work>
  void run_in(SerialExecutor& lane, Work work);
  template <typename Work>
  void run_aside(Work work);  // Same in a separate thread.

  template <typename Read>
  void answer(int64_t session, Read read);

  void perform(node::Effect effect);
  void perform(node::Send& effect);
  void perform(node::RaiseFence& effect);
  void perform(node::AddRecord& effect);
  void perform(node::WriteRecord& effect);
  void perform(node::PrepareFolder& effect);
  void perform(node::DiscardPrepared& effect);
  void perform(node::CheckToken& effect);
  void perform(node::SpawnShim& effect);
  void perform(node::FindShim& effect);
  void perform(node::CheckRanks& effect);
  void perform(node::KillShim& effect);
  void perform(node::SendToShim& effect);
  void perform(node::ReadSpool& effect);
  void perform(node::ReadLogTail& effect);
  void perform(node::WatchSpools& effect);
  void perform(node::UnwatchSpools& effect);
  void perform(node::WritePlaces& effect);
  void perform(node::ForgetAttempt& effect);
  void perform(node::DeleteFolder& effect);
  void perform(node::CleanUp& effect);
  void perform(node::WriteCluster& effect);
  void perform(node::WriteLeaderEpoch& effect);
  void perform(node::AnswerLog& effect);
  void perform(node::AnswerTrace& effect);
  void perform(node::AnswerDiagnosis& effect);
  void perform(node::ResetSession& effect);
  void perform(node::Log& effect);
  void perform(node::Exit& effect);

  std::vector<std::string> programs() const { return {options_.rank_binary, options_.shim_binary}; }

  const DaemonOptions options_;
  const DaemonTelemetry telemetry_;
  const std::shared_ptr<const StateFolder> state_;
  const Resources resources_;
  // Where control groups for ranks are created. None: they are not available.
  const std::optional<shim::GroupHome> groups_;
  Loop loop_;
  FileWatcher watcher_;
  node::NodeCore core_;
  std::optional<Loop::Timer> timer_;
  std::map<AttemptKey, Link> links_;
  std::map<AttemptKey, Beacons> beacons_;
  host::Descriptor signals_;
  std::unique_ptr<Session> session_;
  LostContact contact_;
  rpc::CertificateExpiryWarning certificate_;
  FolderWatch folders_;
  SerialExecutor state_looks_{std::chrono::milliseconds(100)};  // Checks of the state folder.
  absl::Duration look_at_state_at_;                             // Monotonic time of the next check.
  std::optional<absl::Duration> state_look_began_;              // Start of the check in progress.
  std::set<std::string> dumps_;                                 // Dump folders that were measured last.
  absl::Duration look_at_folders_at_;                           // Monotonic time of the next measurement.
  std::optional<GpuWatch> gpus_;                                // Only on nodes with GPUs.
  absl::Duration look_at_gpus_at_;                              // Monotonic time of the next read.
  SerialExecutor records_;                                      // Work on the state folder that must keep its order.
  SerialExecutor shims_;
  SerialExecutor checks_;  // Reads /proc, where a process that waits in the kernel may block its readers.
  SerialExecutor spools_;
  SerialExecutor logs_;
  SerialExecutor cleaner_;
};

}  // namespace titan::daemon
