#pragma once

// A machine: titan-worker's real core on a modelled disk, shims and rank processes. The disk, the shims and their ranks
// survive a crash of the daemon; only the disk survives a crash of the machine.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/storage.h"
#include "tests/simulation/timeline.h"
#include "worker/node/core/node_core.h"

namespace titan::simulation {

class Machine;

// The common work of an attempt's ranks on all nodes: load, step, publish, finish.
class Training {
 public:
  virtual ~Training() = default;
  virtual void started(Machine& machine, const node::AttemptKey& key) = 0;      // All ranks of this node run.
  virtual void on_save_requested(const node::AttemptKey& key, bool leave) = 0;  // One rank is enough.
  virtual void on_rank_exit(const node::AttemptKey& key, const std::string& node) = 0;
  virtual void killed(const node::AttemptKey& key, const std::string& reason) = 0;  // Without a grace period.
};

class Machine {
 public:
  struct Rank {
    int rank = 0;
    int64_t pid = 0;
    bool running = false;
    bool stuck = false;  // Lives but does nothing.
    std::optional<rank_protocol::RankExit> exit;
    std::vector<std::string> spool;
    int64_t step = 0, counter = 0;
    std::string phase = "init";
  };
  struct SimShim {
    int64_t pid = 0;
    bool alive = true;
    bool ended = false;
    node::Op link = 0;
    bool started = false;
    std::string stop_reason;
    absl::Duration kill_at = absl::InfiniteDuration();
    absl::Duration orphan_at = absl::InfiniteDuration();
    bool orphan_saves = false;
    double orphan_timeout = 600;
    std::vector<Rank> ranks;
    std::optional<node::ShimStatus> written;
  };

  Machine(Timeline& timeline, Storage& storage, Training& training, std::string name, int devices);

  const std::string& name() const { return name_; }
  int devices() const { return devices_; }

  // --- Daemon ---
  bool daemon_runs() const { return core_ != nullptr; }
  void start_daemon();
  void kill_daemon();
  void crash();  // Crashes the whole machine, which stays down.
  void boot();
  // Damages one record, as if it was incomplete on disk at a crash: it is gone or unreadable. With an unreadable record
  // the daemon does not start, because ranks may run.
  void tear_record();
  void remove_torn_record();  // Ends its ranks first, as an operator would.
  v1::Register hello() const { return core_->make_register(now()); }
  void receive(int64_t session, const v1::ControllerMessage& message);
  void disconnected(int64_t session, const std::string& reason);
  std::function<void(int64_t session, v1::WorkerMessage)> on_send;
  std::function<void(int64_t session)> on_reset;
  std::function<void(bool with_machine)> on_death;  // Called when the daemon dies.

  // --- Faults ---
  bool up = true;
  bool hung_storage = false;  // Shared storage does not answer.
  bool refuses = false;       // Fails every Prepare, permanently.
  bool unkillable = false;    // Its ranks hang in the kernel.
  bool unreadable = false;    // Files in its state folder cannot be read.
  bool idle = false;          // Its daemon beats but ignores commands.
  bool for_good = false;      // None of its faults is ever repaired.
  bool slow_disk = false;
  bool disk_full = false;  // Only the state folder's disk; ranks and shims can still write.
  absl::Duration skew;     // Offset of its wall clock.

  // --- Ranks, for the training ---
  SimShim* shim(const node::AttemptKey& key);
  const node::LaunchFacts& facts(const node::AttemptKey& key) const { return disk_.facts.at(key); }
  const node::AttemptRecord& record(const node::AttemptKey& key) const { return disk_.records.at(key); }
  Rank* rank(const node::AttemptKey& key, int number);
  void write_event(const node::AttemptKey& key, int rank, const std::string& json);
  void exit_rank(const node::AttemptKey& key, int rank, int code, int signal);
  void kill_shim(const node::AttemptKey& key);
  std::set<int> devices_in_use() const;
  std::vector<std::string> double_use() const;  // Devices that two attempts use at once.
  std::function<void(const std::string& what)> violated;
  const node::NodeCore* core() const { return core_.get(); }
  std::map<node::AttemptKey, SimShim>& shims() { return shims_; }

 private:
  struct Disk {
    std::map<node::AttemptKey, node::AttemptRecord> records;
    std::map<node::AttemptKey, std::map<int, node::SpoolTail::Place>> places;
    std::map<node::AttemptKey, node::LaunchFacts> facts;
    std::map<std::string, int> fences;
    std::string cluster;
    int64_t epoch = 0;
  };

  Now now() const;
  void feed(const node::Input& input);
  bool fail_if_disk_full(const node::Effect& effect);
  void plan(node::Effect effect);
  void perform(node::Effect& effect);
  void later(absl::Duration delay, node::Input input);
  void send_to_daemon(const node::AttemptKey& key, node::ShimEvent event);
  void run_shim_command(const node::AttemptKey& key, const node::ShimCommand& command);
  void kill_ranks(const node::AttemptKey& key);
  void note_start(const node::AttemptKey& key);
  void end_if_over(const node::AttemptKey& key);
  node::ShimStatus status_of(const SimShim& shim) const;
  void wake();
  void read_beacons();
  void run_shims();
  absl::Duration delay();

  Timeline& timeline_;
  Storage& storage_;
  Training& training_;
  const std::string name_;
  const int devices_;
  std::unique_ptr<node::NodeCore> core_;
  int life_ = 0;  // Number of the daemon's start: callbacks of an earlier one do nothing.
  Disk disk_;
  std::optional<node::AttemptKey> torn_;  // The attempt with an unreadable record.
  std::map<node::AttemptKey, SimShim> shims_;
  std::map<std::string, int> newest_;  // Newest attempt that has started here, by job.
  std::set<std::pair<node::AttemptKey, int>> watched_;
  absl::Duration folder_ready_ = absl::ZeroDuration();     // Keeps effects on the state folder in order.
  std::map<node::AttemptKey, absl::Duration> link_ready_;  // Keeps a shim's messages in order.
  absl::Duration wake_at_ = absl::InfiniteDuration();
  int64_t last_pid_ = 100;
  std::string boot_ = "boot1";
  int boots_ = 1;
};

}  // namespace titan::simulation
