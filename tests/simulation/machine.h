#pragma once

// A machine: a titan-worker's real core over a modelled disk, shims and rank processes. What outlives a crash of the
// daemon is the disk, the shims and their ranks; what outlives one of the machine is the disk.

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

// What the ranks of one attempt do together, wherever they are: load, step, publish, finish.
class Training {
 public:
  virtual ~Training() = default;
  virtual void started(Machine& machine, const node::AttemptKey& key) = 0;  // All ranks of this node run.
  virtual void asked_to_save(const node::AttemptKey& key, bool leave) = 0;  // One rank is enough.
  virtual void rank_gone(const node::AttemptKey& key, const std::string& node) = 0;
  virtual void killed(const node::AttemptKey& key, const std::string& reason) = 0;  // Without a grace.
};

class Machine {
 public:
  struct Rank {
    int rank = 0;
    int64_t pid = 0;
    bool running = false;
    bool stuck = false;  // Lives and does nothing.
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

  // --- its daemon ---
  bool daemon_runs() const { return core_ != nullptr; }
  void start_daemon();
  void kill_daemon();
  void crash();  // The whole machine; it does not come back by itself.
  void boot();
  // One of its records was not whole on the disk when it crashed: it is gone, or there and not readable. Beside one
  // that it cannot read the daemon does not start, since ranks may run.
  void tear_record();
  void remove_torn_record();  // As an operator does, who sees that none run.
  v1::Register hello() const { return core_->make_register(now()); }
  void hear(int64_t session, const v1::ControllerMessage& message);
  void disconnected(int64_t session, const std::string& reason);
  std::function<void(int64_t session, v1::WorkerMessage)> on_send;
  std::function<void(int64_t session)> on_reset;
  std::function<void(bool with_machine)> on_death;  // Of the daemon.

  // --- faults ---
  bool up = true;
  bool hung_storage = false;  // Shared storage does not answer.
  bool refuses = false;       // Cannot prepare, for ever.
  bool unkillable = false;    // Its ranks wait in the kernel.
  bool unreadable = false;    // What lies in its state folder cannot be read.
  bool idle = false;          // Its daemon beats, and does nothing that it is told.
  bool for_good = false;      // None of this is ever mended.
  bool slow_disk = false;
  bool disk_full = false;  // Of the state folder; what ranks and shims write still finds room.
  absl::Duration skew;     // Of its wall clock.

  // --- its ranks, for the training ---
  SimShim* shim(const node::AttemptKey& key);
  const node::LaunchFacts& facts(const node::AttemptKey& key) const { return disk_.facts.at(key); }
  const node::AttemptRecord& record(const node::AttemptKey& key) const { return disk_.records.at(key); }
  Rank* rank(const node::AttemptKey& key, int number);
  void speak(const node::AttemptKey& key, int rank, const std::string& json);
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
  bool refuse_for_room(const node::Effect& effect);
  void plan(node::Effect effect);
  void perform(node::Effect& effect);
  void later(absl::Duration delay, node::Input input);
  void say(const node::AttemptKey& key, node::ShimEvent said);
  void shim_does(const node::AttemptKey& key, const node::ShimCommand& command);
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
  int life_ = 0;  // Of the daemon: what belongs to an earlier one comes to nothing.
  Disk disk_;
  std::optional<node::AttemptKey> torn_;  // Its record cannot be read.
  std::map<node::AttemptKey, SimShim> shims_;
  std::map<std::string, int> newest_;  // Attempts that have started here, by job.
  std::set<std::pair<node::AttemptKey, int>> watched_;
  absl::Duration folder_ready_ = absl::ZeroDuration();     // Effects on the state folder keep their order,
  std::map<node::AttemptKey, absl::Duration> link_ready_;  // and what a shim says its.
  absl::Duration wake_at_ = absl::InfiniteDuration();
  int64_t last_pid_ = 100;
  std::string boot_ = "boot1";
  int boots_ = 1;
};

}  // namespace titan::simulation
