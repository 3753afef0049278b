#include "tests/simulation/cluster.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"

namespace titan::simulation {
namespace {

constexpr absl::Duration kKeepalive = absl::Seconds(15);
constexpr absl::Duration kTick = absl::Milliseconds(200);

}  // namespace

// --- the store ---

void SimStore::commit(store::Transaction transaction, store::Committed done) {
  MemoryStore::commit(std::move(transaction), std::move(done));
  ++queued_;
  ready_ = std::max(ready_, timeline_.now() + timeline_.random.between(absl::Milliseconds(0.2), absl::Milliseconds(5)));
  timeline_.at(ready_, [this, life = life_] {
    if (life != life_) return;
    ++due_;
    run_due();
  });
}

// What a full disk has kept comes when there is room.
void SimStore::run_due() {
  while (due_ > 0 && run_one()) {
    --due_;
    --queued_;
  }
}

void SimStore::set_full(bool full) {
  is_full_ = full;
  MemoryStore::set_full(full);
  run_due();
}

void SimStore::crash() {
  ++life_;
  drop_pending(is_full_ ? 0 : timeline_.random.between(0, std::min(queued_, 3)));
  queued_ = due_ = 0;
}

void SimStore::replace(const std::vector<store::Record>& records) {
  store::Transaction replace;
  const std::vector<store::Record> present = *store::scan_all(*this, "");
  for (const store::Record& record : present) replace.mutations.push_back(store::erase(record.key));
  for (const store::Record& record : records) replace.mutations.push_back(store::put(record.key, record.value));
  MemoryStore::set_full(false);
  MemoryStore::commit(std::move(replace), [](const auto&) {});
  run_pending();
  MemoryStore::set_full(is_full_);
}

// --- streams ---

void Stream::send(const v1::ControllerMessage& message) {
  if (!at_controller || !at_worker) return;
  const auto self = cluster->links[machine->name()].stream;
  if (self.get() != this) return;
  to_worker_ready = std::max(to_worker_ready, cluster->timeline.now() + cluster->links[machine->name()].latency);
  cluster->timeline.at(to_worker_ready, [self, message] { self->cluster->deliver_to_worker(self, message); });
}

void Stream::close(const std::string&) { at_controller = false; }

void Cluster::deliver_to_worker(const std::shared_ptr<Stream>& stream, const v1::ControllerMessage& message) {
  if (!stream->at_worker) return;
  if (!links[stream->machine->name()].to_worker || !stream->held_to_worker.empty()) {
    return stream->held_to_worker.push_back(message);
  }
  stream->machine->hear(stream->number, message);
}

void Cluster::from_worker(const std::string& node, int64_t session, const v1::WorkerMessage& message) {
  Link& link = links[node];
  const std::shared_ptr<Stream> stream = link.stream;
  if (stream == nullptr || stream->number != session || !stream->at_worker) return;
  stream->to_controller_ready = std::max(stream->to_controller_ready, timeline.now() + link.latency);
  timeline.at(stream->to_controller_ready, [this, stream, message] { deliver_to_controller(stream, message); });
}

// What was sent before a stream's end may still arrive.
void Cluster::deliver_to_controller(const std::shared_ptr<Stream>& stream, const v1::WorkerMessage& message) {
  if (controller == nullptr || stream->life != life_ || !stream->at_controller) return;
  if (!links[stream->machine->name()].to_controller || !stream->held_to_controller.empty()) {
    return stream->held_to_controller.push_back(message);
  }
  if (message.has_register_()) {
    const absl::Status status = controller->open_session(message.register_(), stream);
    if (status.ok()) return;
    stream->at_controller = false;
    timeline.after(absl::Milliseconds(1),
                   [this, stream, reason = rpc::reason(status)] { end_at_worker(stream, reason); });
    return;
  }
  controller->on_message(stream->machine->name(), stream, message);
}

void Cluster::end_at_worker(const std::shared_ptr<Stream>& stream, const std::string& reason) {
  if (!std::exchange(stream->at_worker, false)) return;
  Link& link = links[stream->machine->name()];
  if (link.stream == stream) link.stream = nullptr;
  stream->machine->disconnected(stream->number, reason);
}

void Cluster::end_at_controller(const std::shared_ptr<Stream>& stream) {
  if (!std::exchange(stream->at_controller, false)) return;
  if (controller != nullptr && stream->life == life_) controller->close_session(stream->machine->name(), stream.get());
}

void Cluster::break_stream(const std::shared_ptr<Stream>& stream) {
  timeline.after(timeline.random.between(absl::ZeroDuration(), absl::Milliseconds(200)),
                 [this, stream] { end_at_worker(stream, ""); });
  timeline.after(timeline.random.between(absl::ZeroDuration(), absl::Milliseconds(200)),
                 [this, stream] { end_at_controller(stream); });
}

// The kernel of a machine that lives ends its streams; those of a dead one end when nothing answers any more.
void Cluster::daemon_died(const std::string& node, bool with_machine) {
  const std::shared_ptr<Stream> stream = std::exchange(links[node].stream, nullptr);
  if (stream == nullptr) return;
  stream->at_worker = false;
  timeline.after(with_machine ? kKeepalive : absl::Milliseconds(1), [this, stream] { end_at_controller(stream); });
}

void Cluster::reset_stream(const std::string& node) {
  if (const std::shared_ptr<Stream> stream = links[node].stream) break_stream(stream);
}

void Cluster::block(const std::string& node, bool to_worker, bool to_controller) {
  Link& link = links[node];
  link.to_worker = !to_worker;
  link.to_controller = !to_controller;
  link.blocked_since = timeline.now();
  timeline.after(kKeepalive, [this, node, since = timeline.now()] {
    Link& link = links[node];
    if (link.blocked_since != since || (link.to_worker && link.to_controller)) return;
    if (link.stream != nullptr) break_stream(link.stream);
  });
}

void Cluster::heal(const std::string& node) {
  Link& link = links[node];
  link.to_worker = link.to_controller = true;
  const std::shared_ptr<Stream> stream = link.stream;
  if (stream == nullptr) return;
  for (const v1::ControllerMessage& message : std::exchange(stream->held_to_worker, {}))
    deliver_to_worker(stream, message);
  for (const v1::WorkerMessage& message : std::exchange(stream->held_to_controller, {})) {
    deliver_to_controller(stream, message);
  }
}

void Cluster::try_to_connect(const std::string& node) {
  timeline.after(timeline.random.between(absl::Milliseconds(500), absl::Seconds(1)),
                 [this, node] { try_to_connect(node); });
  Link& link = links[node];
  Machine& machine = *machines.at(node);
  if (!machine.daemon_runs() || !link.to_worker || !link.to_controller) return;
  if (link.stream != nullptr && link.stream->at_worker) return;
  if (controller == nullptr) return machine.disconnected(0, "");
  auto stream = std::make_shared<Stream>();
  stream->cluster = this;
  stream->machine = &machine;
  stream->number = ++link.sessions;
  stream->life = life_;
  link.stream = stream;
  v1::WorkerMessage hello;
  *hello.mutable_register_() = machine.hello();
  from_worker(node, stream->number, hello);
}

// --- the whole ---

Cluster::Cluster(uint64_t seed, int nodes, int devices) : timeline(seed), ranks(timeline, storage), store(timeline) {
  ranks.machine = [this](const std::string& node) -> Machine& { return *machines.at(node); };
  ranks.reachable = [this](const std::string& node) { return links[node].data && machines.at(node)->up; };
  ranks.violated = [this](const std::string& what) { violate(what); };
  for (int i = 1; i <= nodes; ++i) {
    const std::string name = absl::StrCat("n", i);
    auto machine = std::make_unique<Machine>(timeline, storage, ranks, name, devices);
    links[name].latency = timeline.random.between(absl::Microseconds(50), absl::Milliseconds(3));
    machine->on_send = [this, name](int64_t session, const v1::WorkerMessage& message) {
      from_worker(name, session, message);
    };
    machine->on_reset = [this, name](int64_t session) {
      const std::shared_ptr<Stream> stream = links[name].stream;
      if (stream != nullptr && stream->number == session) break_stream(stream);
    };
    machine->on_death = [this, name](bool with_machine) { daemon_died(name, with_machine); };
    machines.emplace(name, std::move(machine));
  }
  start_controller();
  for (auto& [name, machine] : machines) {
    machine->start_daemon();
    try_to_connect(name);
  }
  tick();
}

void Cluster::violate(const std::string& what) {
  violations.push_back(absl::StrCat(absl::FormatDuration(timeline.now()), ": ", what));
  trace(absl::StrCat("VIOLATION ", what));
}

void Cluster::trace(const std::string& what) const {
  if (traces) std::cerr << absl::FormatDuration(timeline.now()) << " " << what << "\n";
}

// The controller's decisions, as its log has them.
struct TraceJournal : journal::Journal {
  explicit TraceJournal(const Cluster& owner) : cluster(owner) {}
  void write(const journal::Line& line) override { cluster.trace(absl::StrCat("  ", journal::format(line))); }
  const Cluster& cluster;
};

void Cluster::start_controller() {
  trace("controller starts");
  if (controller != nullptr) return;
  ++life_;
  reconcile::Options options;
  options.cluster = "simulated";
  options.jitter = [this] { return timeline.random.fraction(); };
  options.new_id = [this] { return absl::StrCat("id", ++ids_); };
  if (traces) options.journal = std::make_shared<TraceJournal>(*this);
  measures_ = std::make_unique<reconcile::Measures>(metrics_);
  auto opened = reconcile::Reconciler::open(store, timeline.clock, options, *measures_);
  if (!opened.ok()) return violate(absl::StrCat("the controller does not start: ", opened.status().message()));
  controller = *std::move(opened);
  const reconcile::Published::Batch all = controller->published().page(/*after_order=*/0, /*limit=*/1 << 20);
  cursor_ = all.next_cursor;
  if (on_start) on_start();
  for (const reconcile::ShownPtr& view : all.views) {
    if (on_view) on_view(*view);
  }
}

void Cluster::crash_controller() {
  if (controller == nullptr) return;
  watch();
  controller.reset();
  store.crash();
  for (auto& [name, link] : links) {
    const std::shared_ptr<Stream> stream = link.stream;
    if (stream == nullptr) continue;
    stream->at_controller = false;
    timeline.after(timeline.random.between(absl::ZeroDuration(), absl::Milliseconds(50)),
                   [this, stream] { end_at_worker(stream, ""); });
  }
}

void Cluster::restore_store(const std::vector<store::Record>& records) {
  crash_controller();
  store.replace(records);
}

void Cluster::tick() {
  timeline.after(kTick, [this] { tick(); });
  if (controller == nullptr) return;
  controller->tick();
  watch();
  check_machines();
}

void Cluster::watch() {
  for (;;) {
    const absl::StatusOr<reconcile::Published::Batch> batch = controller->published().changes(cursor_, 100);
    if (!batch.ok()) return violate(absl::StrCat("the watch fell behind: ", batch.status().message()));
    for (const reconcile::ShownPtr& view : batch->views) {
      if (on_view) on_view(*view);
    }
    cursor_ = batch->next_cursor;
    if (batch->views.empty()) return;
  }
}

void Cluster::check_machines() {
  for (const auto& [name, machine] : machines) {
    for (const std::string& what : machine->double_use()) violate(what);
  }
}

}  // namespace titan::simulation
