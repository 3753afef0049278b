#pragma once

// A whole cluster: the real controller over a store that loses what was not durable, real node cores on modelled
// machines, and a network between them that delays, holds and breaks streams.

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
#include "tests/simulation/witness.h"

namespace titan::simulation {

class Cluster;
struct Link;

// Transactions become durable one by one, each a while after it was queued.
class SimStore : public store::MemoryStore {
 public:
  explicit SimStore(Timeline& timeline) : store::MemoryStore(1 << 20), timeline_(timeline) {}
  void commit(store::Transaction transaction, store::Committed done) override;
  void set_aside(const store::Record& record, const std::string& reason) override;
  void set_full(bool full);
  bool is_full() const { return is_full_; }
  // What was decided while there was no room may have become durable just now, and is obeyed from then on.
  bool was_full_just_now() const;
  // The controller dies: some of what was on its way has become durable, unheard.
  void crash();
  void replace(const std::vector<store::Record>& records);  // All that there is, while nobody uses it.
  void damage(const store::Record& record);                 // Likewise: it cannot be read any more, and is set aside.
  // Of each transaction so far, in the order in which they became durable: the kinds of its keys ("job", "event/node").
  std::vector<std::set<std::string>> kinds;
  // The controller dies once so many are durable, and hears nothing of the last one. 0: never.
  size_t crash_after = 0;
  std::function<void()> on_crash;
  std::function<void()> before_each;  // Transaction that becomes durable,
  // and after it, with the jobs whose records it has changed.
  std::function<void(const std::vector<std::string>& jobs, int64_t revision)> after_each;

 private:
  void run_due();

  Timeline& timeline_;
  int queued_ = 0;
  int due_ = 0;  // Of those, by time.
  int life_ = 0;
  bool is_full_ = false;
  absl::Duration room_since_ = -absl::InfiniteDuration();
  bool is_dying_ = false;    // What becomes durable now is not heard of.
  bool sets_aside_ = false;  // Nobody is shown a job that cannot be read.
  absl::Duration ready_ = absl::ZeroDuration();
};

// The controller's. Its time of day may jump.
struct JumpingClock : Clock {
  explicit JumpingClock(const Clock& steady) : clock(steady) {}
  absl::Time now() const override { return clock.now() + jump; }
  absl::Duration monotonic() const override { return clock.monotonic(); }
  const Clock& clock;
  absl::Duration jump;
};

// One stream between a worker and the controller: what is sent on it comes in order, or not at all. Each side notices
// its end by itself, and what it had on its way may come after the first words of the next one.
struct Stream : reconcile::Session, std::enable_shared_from_this<Stream> {
  Cluster* cluster = nullptr;
  Machine* machine = nullptr;
  Link* link = nullptr;  // Of the machine.
  int64_t number = 0;    // The worker's.
  int life = 0;          // Of the controller.
  bool at_worker = true, at_controller = true;
  bool is_known = false;  // The controller has let it in.
  bool is_late = false;   // What the worker has said is still on its way.
  absl::Duration to_worker_ready, to_controller_ready;
  std::deque<v1::ControllerMessage> held_to_worker;
  std::deque<v1::WorkerMessage> held_to_controller;
  std::set<std::pair<node::AttemptKey, int>> heard;  // Ranks of which it has brought events.
  void send(const v1::ControllerMessage& message) override;
  void close(const std::string& why) override;
};

struct Link {
  bool to_worker = true, to_controller = true;  // Whether it carries.
  absl::Duration latency = absl::Milliseconds(1);
  absl::Duration blocked_since;
  std::shared_ptr<Stream> stream;
  int64_t sessions = 0;
  bool data = true;         // Other ranks reach it.
  absl::Duration heard_at;  // Something came from it, and would have reached it.
  int64_t second = 0;       // Of the present one: how much the node has said.
  int64_t said = 0;
  absl::Duration late_hello;  // By so much the next one is.
};

class Cluster {
 public:
  Cluster(uint64_t seed, int nodes, int devices);

  Timeline timeline;
  Storage storage;
  Ranks ranks;
  SimStore store;
  JumpingClock clock{timeline.clock};
  std::map<std::string, std::unique_ptr<Machine>> machines;
  std::map<std::string, Link> links;
  std::unique_ptr<reconcile::Reconciler> controller;  // None while it is down.
  std::vector<std::string> violations;
  uint64_t digest = 0;                                       // Of the controller's decisions.
  bool excused_events = false;                               // The store was set back: cursors with it.
  std::set<std::tuple<std::string, int, int>> lost_cursors;  // Uid, attempt, rank: its record cannot be read.

  void start_controller();
  void crash_controller();
  void crash_controller_after(size_t transactions);
  void restore_store(const std::vector<store::Record>& records);
  void block(const std::string& node, bool to_worker, bool to_controller);
  void heal(const std::string& node);
  void reset_stream(const std::string& node);
  void delay_stream(const std::string& node, absl::Duration delay);  // It breaks, and its words come late.
  void pause_controller(absl::Duration pause);                       // Hears, says and does nothing meanwhile.
  bool controller_answers() const { return controller != nullptr && timeline.now() >= paused_until_; }
  // What somebody says who must not be obeyed: a node of another node's ranks, a leader of an earlier epoch.
  void say_as(const std::string& node, const v1::WorkerMessage& message);
  void command_as_earlier_leader(const std::string& node, v1::ControllerMessage message);
  void violate(const std::string& what);
  void trace(const std::string& what) const;  // For who replays a seed.
  const bool traces = getenv("TITAN_SIMULATION_TRACE") != nullptr;
  void check_machines();
  void note(const journal::Line& line);
  void watch();  // Shows what is new.
  // Every change that watchers are shown.
  std::function<void(const reconcile::JobView&)> on_view;
  std::function<void()> on_start, on_started;  // Before and after a new controller has shown all that it has.
  bool is_starting = false;                    // In between: some jobs are shown as they were before.
  std::function<void(const std::string& node)> on_unanswered;  // It gives its session up.
  std::function<void(const std::string& node)> on_no_devices;  // It is asked for some that it does not have.
  std::function<void(const journal::Line&)> on_line;           // Of the controller's journal.

 private:
  friend struct Stream;
  void tick();
  void try_to_connect(Machine& machine, Link& link);
  void deliver_to_worker(const std::shared_ptr<Stream>& stream, const v1::ControllerMessage& message);
  void deliver_to_controller(const std::shared_ptr<Stream>& stream, const v1::WorkerMessage& message);
  void from_worker(const std::string& node, Link& link, int64_t session, v1::WorkerMessage message);
  void break_stream(const std::shared_ptr<Stream>& stream);
  void delay_words(const std::shared_ptr<Stream>& stream, absl::Duration delay);
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
  Witness witness_;
  int life_ = 0;  // Of the controller.
  int64_t cursor_ = 0;
  absl::Duration paused_until_;
  struct Change {
    int64_t revision = 0;
    std::string uid;
    size_t bytes = 0;  // Of those that are kept for watchers.
  };
  std::vector<Change> history_;  // What this controller has shown.
  int64_t first_revision_ = 0;   // When it started.
  int ids_ = 0;
};

}  // namespace titan::simulation
