#pragma once

// A whole cluster: the real controller over a store that loses what was not durable, real node cores on modelled
// machines, and a network between them that delays, holds and breaks streams.

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "controller/reconcile/reconciler.h"
#include "controller/store/memory_store.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/training.h"

namespace titan::simulation {

class Cluster;

// Transactions become durable one by one, each a while after it was queued.
class SimStore : public store::MemoryStore {
 public:
  explicit SimStore(Timeline& timeline) : store::MemoryStore(1 << 20), timeline_(timeline) {}
  void commit(store::Transaction transaction, store::Committed done) override;
  void set_full(bool full);
  // The controller dies: some of what was on its way has become durable, unheard.
  void crash();
  void replace(const std::vector<store::Record>& records);  // All that there is, while nobody uses it.

 private:
  void run_due();

  Timeline& timeline_;
  int queued_ = 0;
  int due_ = 0;  // Of those, by time.
  int life_ = 0;
  bool is_full_ = false;
  absl::Duration ready_ = absl::ZeroDuration();
};

// One stream between a worker and the controller. Each side notices its end by itself.
struct Stream : cluster::Session {
  Cluster* cluster = nullptr;
  Machine* machine = nullptr;
  int64_t number = 0;  // The worker's.
  int life = 0;        // Of the controller.
  bool at_worker = true, at_controller = true;
  absl::Duration to_worker_ready, to_controller_ready;
  std::deque<v1::ControllerMessage> held_to_worker;
  std::deque<v1::WorkerMessage> held_to_controller;
  void send(const v1::ControllerMessage& message) override;
  void close(const std::string& why) override;
};

struct Link {
  bool to_worker = true, to_controller = true;  // Whether it carries.
  absl::Duration latency = absl::Milliseconds(1);
  absl::Duration blocked_since;
  std::shared_ptr<Stream> stream;
  int64_t sessions = 0;
  bool data = true;  // Other ranks reach it.
};

class Cluster {
 public:
  Cluster(uint64_t seed, int nodes, int devices);

  Timeline timeline;
  Storage storage;
  Ranks ranks;
  SimStore store;
  std::map<std::string, std::unique_ptr<Machine>> machines;
  std::map<std::string, Link> links;
  std::unique_ptr<reconcile::Reconciler> controller;  // None while it is down.
  std::vector<std::string> violations;

  void start_controller();
  void crash_controller();
  void restore_store(const std::vector<store::Record>& records);
  void block(const std::string& node, bool to_worker, bool to_controller);
  void heal(const std::string& node);
  void reset_stream(const std::string& node);
  void violate(const std::string& what);
  void trace(const std::string& what) const;  // For who replays a seed.
  const bool traces = getenv("TITAN_SIMULATION_TRACE") != nullptr;
  void check_machines();
  // Every change that watchers are shown.
  std::function<void(const reconcile::JobView&)> on_view;
  std::function<void()> on_start;

 private:
  friend struct Stream;
  void tick();
  void try_to_connect(const std::string& node);
  void deliver_to_worker(const std::shared_ptr<Stream>& stream, const v1::ControllerMessage& message);
  void deliver_to_controller(const std::shared_ptr<Stream>& stream, const v1::WorkerMessage& message);
  void from_worker(const std::string& node, int64_t session, const v1::WorkerMessage& message);
  void break_stream(const std::shared_ptr<Stream>& stream);
  void end_at_worker(const std::shared_ptr<Stream>& stream, const std::string& reason);
  void end_at_controller(const std::shared_ptr<Stream>& stream);
  void daemon_died(const std::string& node, bool with_machine);
  void watch();

  metrics::Metrics metrics_;
  std::unique_ptr<reconcile::Measures> measures_;
  int life_ = 0;  // Of the controller.
  int64_t cursor_ = 0;
  int ids_ = 0;
};

}  // namespace titan::simulation
