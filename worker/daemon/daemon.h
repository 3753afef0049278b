#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "titan/v1/worker.pb.h"
#include "worker/daemon/attempt.h"
#include "worker/daemon/file_watcher.h"
#include "worker/daemon/loop.h"
#include "worker/daemon/lost_contact.h"
#include "worker/daemon/metrics.h"
#include "worker/daemon/resources.h"
#include "worker/daemon/session.h"
#include "worker/daemon/state_folder.h"

namespace titan::daemon {

struct Options {
  std::string controller;
  std::string node;
  std::string address;
  std::string state;
  std::string devices = "auto";
  std::string rank_binary;
  std::string shim_binary;
  int64_t log_max_bytes = 256 << 20;                   // Of one rank's log.
  absl::Duration log_retention = absl::Hours(7 * 24);  // Of attempts that the controller has forgotten.
  int64_t log_retention_bytes = int64_t{10} << 30;
  bool stop_ranks_on_exit = false;
  absl::Duration stop_grace = absl::Seconds(30);
  double token_patience_seconds = 5;
  bool adopt_cluster = false;  // The first controller that answers may be of another cluster: belong to that one.
};

// titan-worker: this node's part of the control plane. Everything it must remember is in its state folder, so that
// killing it at any moment loses nothing: the next one adopts the shims and goes on with the events where the
// controller has them.
class Daemon {
 public:
  // Errors: InvalidArgument (options), AlreadyExists (another daemon on the state folder), and those of the disk.
  static absl::StatusOr<std::unique_ptr<Daemon>> create(Options options, Metrics& metrics);
  ~Daemon();

  // Adopts what runs, connects, and serves until SIGTERM or SIGINT, which the caller has blocked before any thread
  // began. With stop_ranks_on_exit the first signal lets the ranks save and stop, the second kills them; without it the
  // ranks train on.
  void run();

 private:
  Daemon(Options options, Metrics& metrics, StateFolder state, Resources resources);
  AttemptHost make_host();
  void adopt_all();
  v1::Register make_register();
  void on_welcome(const v1::Welcome& welcome);
  void on_lost(const std::string& why, const std::string& reason);
  bool may_follow(const v1::Welcome& welcome);
  void on_message(const v1::ControllerMessage& message);
  void on_prepare(const v1::Prepare& prepare);
  Refusal check_prepare(const v1::Prepare& prepare, const AttemptKey& key) const;
  void prepare_when_older_are_gone(const v1::Prepare& prepare);
  bool any_older(const AttemptKey& key) const;
  void on_forget(const AttemptKey& key);
  void forget(const AttemptKey& key);
  void on_read_log(const v1::ReadLog& request);
  void on_read_trace(const v1::ReadTrace& request);  // traces.cc
  void answer_unknown(const AttemptKey& key, v1::AttemptReport::Phase phase, const Refusal& why);
  void on_over(const AttemptKey& key);
  void tick();
  void clean_up();
  void update_metrics();
  std::set<int> free_devices() const;
  Attempt* find(const v1::AttemptId& id);
  void watch_signals();
  void begin_shutdown();
  void end_if_all_stopped();

  const Options options_;
  Metrics& metrics_;
  StateFolder state_;
  const Resources resources_;
  Loop loop_;
  FileWatcher watcher_;
  AttemptHost host_;
  std::map<AttemptKey, std::shared_ptr<Attempt>> attempts_;
  std::set<AttemptKey> waiting_;     // Prepares that wait for older attempts to be gone.
  std::set<AttemptKey> forgetting_;  // To be forgotten when over.
  shim::Descriptor signals_;
  std::unique_ptr<Session> session_;
  bool connected_ = false;
  bool adopting_ = false;  // --adopt-cluster, until the first welcome.
  LostContact contact_;
  int64_t lease_epoch_ = 0;
  int64_t lease_milliseconds_ = 5000;
  int64_t beat_ = 0;
  int64_t heard_at_ = 0;  // Monotonic nanoseconds of the controller's last answer to a beat.
  int64_t log_bytes_of_ended_ = 0;
  int shutdowns_ = 0;
  int64_t shutdown_at_ = 0;  // Monotonic nanoseconds of the last one.
};

// One line on stderr with the time.
void log_line(const std::string& text);

}  // namespace titan::daemon
