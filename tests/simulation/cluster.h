#pragma once

// A whole cluster: the real controller on a store that loses transactions that were not durable, real node cores on
// modelled machines, and a network that delays, holds back and breaks streams.

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "controller/reconcile/reconciler.h"
#include "controller/store/memory_store.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/training.h"
#include "tests/simulation/watch_checker.h"

namespace titan::simulation {

class Cluster;
struct Link;

// Transactions become durable one by one, each some time after it was queued.
class SimStore : public store::MemoryStore {
 public:
  explicit SimStore(Timeline& timeline) : store::MemoryStore(1 << 20), timeline_(timeline) {}
  void commit(store::Transaction transaction, store::Committed done) override;
  void set_aside(const store::Record& record, const std::string& reason) override;
  void set_full(bool full);
  bool is_full() const { return is_full_; }
  // Returns whether the disk is full or was until a second ago: decisions of that time may take effect only now.
  bool was_full_just_now() const;
  // Drops pending transactions when the controller dies; some in flight have become durable without its knowledge.
  void crash();
  void replace(const std::vector<store::Record>& records);  // Replaces all records while no controller runs.
  void damage(const store::Record& record);  // Makes a record unreadable and sets it aside, while no controller runs.
  // Kinds of keys ("job", "event/node") of each transaction so far, in the order in which they became durable.
  std::vector<std::set<std::string>> kinds;
  // The controller dies once this many are durable, without the result of the last one; 0 means never.
  size_t crash_after = 0;
  std::function<void()> on_crash;
  std::function<void()> before_each;  // Called before each transaction becomes durable.
  // Called after each transaction, with the jobs whose records it changed.
  std::function<void(const std::vector<std::string>& jobs, int64_t revision)> after_each;

 private:
  void run_due();

  Timeline& timeline_;
  int queued_ = 0;
  int due_ = 0;  // Queued transactions whose time has come.
  int life_ = 0;
  bool is_full_ = false;
  absl::Duration space_since_ = -absl::InfiniteDuration();
  bool is_dying_ = false;    // The controller does not get the result of the current transaction.
  bool sets_aside_ = false;  // A job that cannot be read is not shown.
  absl::Duration ready_ = absl::ZeroDuration();
};

// The controller's clock. Its time of day may jump.
struct JumpingClock : Clock {
  explicit JumpingClock(const Clock& steady) : clock(steady) {}
  absl::Time now() const override { return clock.now() + jump; }
  absl::Duration monotonic() const override { return clock.monotonic(); }
  const Clock& clock;
  absl::Duration jump;
};

// One stream between a worker and the controller: messages arrive in order or not at all. Each side notices the end
// separately, and messages in flight may arrive after the first ones of the next stream.
struct Stream : reconcile::Session, std::enable_shared_from_this<Stream> {
  Cluster* cluster = nullptr;
  Machine* machine = nullptr;
  Link* link = nullptr;  // The machine's link.
  int64_t number = 0;    // The worker's number of the session.
  int life = 0;          // Life of the controller.
  bool at_worker = true, at_controller = true;
  bool is_known = false;  // The controller has accepted it.
  bool is_late = false;   // The worker's messages are still in flight.
  absl::Duration to_worker_ready, to_controller_ready;
  std::deque<v1::ControllerMessage> held_to_worker;
  std::deque<v1::WorkerMessage> held_to_controller;
  std::set<std::pair<node::AttemptKey, int>> ranks_heard;  // Ranks with events on this stream.
  void send(const v1::ControllerMessage& message) override;
  void close(const std::string& why) override;
};

struct Link {
  bool to_worker = true, to_controller = true;  // Whether each direction works.
  absl::Duration latency = absl::Milliseconds(1);
  absl::Duration blocked_since;
  std::shared_ptr<Stream> stream;
  int64_t sessions = 0;
  bool data = true;         // Whether other ranks can reach the node.
  absl::Duration heard_at;  // Arrival of its newest message while both directions worked.
  int64_t second = 0;       // The present second, and the node's messages in it.
  int64_t num_messages = 0;
  absl::Duration late_hello;  // Delay of the next Register.
};

class Cluster {
 public:
  Cluster(uint64_t seed, int nodes, int devices);

  Timeline timeline;
  Storage storage;
  SimTraining ranks;
  SimStore store;
  JumpingClock clock{timeline.clock};
  std::map<std::string, std::unique_ptr<Machine>> machines;
  std::map<std::string, Link> links;
  std::unique_ptr<reconcile::Reconciler> controller;  // Null while it is down.
  std::vector<std::string> violations;
  uint64_t digest = 0;                                       // Digest of the controller's decisions.
  bool excused_events = false;                               // The store was restored: cursors may be too low.
  std::set<std::tuple<std::string, int, int>> lost_cursors;  // Uid, attempt and rank of cursors that cannot be read.

  void start_controller();
  void crash_controller();
  void crash_controller_after(size_t transactions);
  void restore_store(const std::vector<store::Record>& records);
  void block(const std::string& node, bool to_worker, bool to_controller);
  void heal(const std::string& node);
  void reset_stream(const std::string& node);
  void delay_stream(const std::string& node, absl::Duration delay);  // Breaks the stream, and its messages arrive late.
  void pause_controller(absl::Duration pause);  // The controller neither receives nor sends nor acts meanwhile.
  bool controller_answers() const { return controller != nullptr && timeline.now() >= paused_until_; }
  // Sends as somebody who must be ignored: a node about another node's ranks, or a leader of an earlier epoch.
  void send_as(const std::string& node, const v1::WorkerMessage& message);
  void command_as_earlier_leader(const std::string& node, v1::ControllerMessage message);
  void violate(const std::string& what);
  void trace(const std::string& what) const;  // Prints while a seed is replayed.
  const bool traces = getenv("TITAN_SIMULATION_TRACE") != nullptr;
  void check_machines();
  void note(const journal::Line& line);
  void watch();  // Shows new changes.
  // Called for every change that watchers get.
  std::function<void(const reconcile::JobView&)> on_view;
  std::function<void()> on_start, on_started;  // Called before and after a new controller has shown all jobs.
  bool is_starting = false;                    // Between the two: some jobs are still shown as before.
  std::function<void(const std::string& node)> on_unanswered;  // The node gives its session up.
  std::function<void(const std::string& node)>
      on_no_devices;                                  // The node gets a request for devices that it does not have.
  std::function<void(const journal::Line&)> on_line;  // Called for each line of the controller's journal.

 private:
  friend struct Stream;
  void tick();
  void try_to_connect(Machine& machine, Link& link);
  void deliver_to_worker(const std::shared_ptr<Stream>& stream, const v1::ControllerMessage& message);
  void deliver_to_controller(const std::shared_ptr<Stream>& stream, const v1::WorkerMessage& message);
  void from_worker(const std::string& node, Link& link, int64_t session, v1::WorkerMessage message);
  void break_stream(const std::shared_ptr<Stream>& stream);
  void delay_messages(const std::shared_ptr<Stream>& stream, absl::Duration delay);
  void deliver_late(const std::shared_ptr<Stream>& stream);
  void end_at_worker(const std::shared_ptr<Stream>& stream, const std::string& reason);
  void end_at_controller(const std::shared_ptr<Stream>& stream);
  void daemon_died(const std::string& node, bool with_machine);
  void resume_watch();
  int64_t cursor_of(const std::string& uid, int attempt, int rank) const;
  bool is_excused(const std::string& uid, int attempt, int rank, int64_t cursor) const;
  void check_acknowledged();
  void check_events(const std::shared_ptr<Stream>& stream, const v1::RankEvents& events);

  metrics::Metrics metrics_;
  std::unique_ptr<reconcile::Measures> measures_;
  WatchChecker watch_checker_;
  int life_ = 0;  // Number of the controller's start.
  int64_t cursor_ = 0;
  absl::Duration paused_until_;
  struct Change {
    int64_t revision = 0;
    std::string uid;
    size_t bytes = 0;  // Bytes that are kept for watchers.
  };
  std::vector<Change> history_;  // Changes that this controller has shown.
  int64_t first_revision_ = 0;   // Revision of its start.
  int ids_ = 0;
};

}  // namespace titan::simulation
