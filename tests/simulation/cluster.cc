#include "tests/simulation/cluster.h"

#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"

namespace titan::simulation {
namespace {

constexpr absl::Duration kKeepalive = absl::Seconds(15);
constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr int64_t kMaxMessages = 500;        // Messages of a node within a second.
constexpr absl::string_view kJobs = "job/";  // Prefix of the keys of job records.

std::string kind_of(const std::string& key) {
  const size_t first = key.find('/');
  return key.substr(0, absl::StartsWith(key, "event/") ? key.find('/', first + 1) : first);
}

std::set<std::string> kinds_of(const store::Transaction& transaction) {
  std::set<std::string> kinds;
  for (const store::Mutation& mutation : transaction.mutations) kinds.insert(kind_of(mutation.key));
  return kinds;
}

}  // namespace

// --- Store ---

void SimStore::commit(store::Transaction transaction, store::Committed done) {
  std::vector<std::string> jobs;
  for (const store::Mutation& mutation : transaction.mutations) {
    if (!sets_aside_ && absl::StartsWith(mutation.key, kJobs)) jobs.push_back(mutation.key.substr(kJobs.size()));
  }
  std::set<std::string> kinds_written = crash_after > 0 ? kinds_of(transaction) : std::set<std::string>();
  MemoryStore::commit(std::move(transaction), [this, jobs = std::move(jobs), written = std::move(kinds_written),
                                               done = std::move(done)](const absl::StatusOr<int64_t>& revision) {
    if (crash_after > 0) kinds.push_back(written);
    if (is_dying_) return;
    if (done) done(revision);
    if (revision.ok() && after_each) after_each(jobs, *revision);
  });
  ++queued_;
  ready_ = std::max(ready_, timeline_.now() + timeline_.random.between(absl::Milliseconds(0.2), absl::Milliseconds(5)));
  timeline_.at(ready_, [this, life = life_] {
    if (life != life_) return;
    ++due_;
    run_due();
  });
}

void SimStore::set_aside(const store::Record& record, const std::string& reason) {
  sets_aside_ = true;
  MemoryStore::set_aside(record, reason);
  sets_aside_ = false;
}

// Transactions that a full disk has kept become durable once there is space.
void SimStore::run_due() {
  while (due_ > 0) {
    if (before_each) before_each();
    is_dying_ = crash_after > 0 && kinds.size() + 1 == crash_after;
    if (!run_one()) return;
    if (std::exchange(is_dying_, false)) return on_crash();
    --due_;
    --queued_;
  }
}

bool SimStore::was_full_just_now() const { return is_full_ || timeline_.now() - space_since_ < absl::Seconds(1); }

void SimStore::set_full(bool full) {
  if (is_full_ && !full) space_since_ = timeline_.now();
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

void SimStore::damage(const store::Record& record) {
  MemoryStore::set_full(false);
  set_aside(record, "bits were lost");
  run_pending();
  queued_ = due_ = 0;
  ++life_;
  MemoryStore::set_full(is_full_);
}

// --- Streams ---

void Stream::send(const v1::ControllerMessage& message) {
  if (!at_controller || !at_worker) return;
  if (link->stream.get() != this) return;
  to_worker_ready = std::max(to_worker_ready, cluster->timeline.now() + link->latency);
  cluster->timeline.at(to_worker_ready,
                       [self = link->stream, message] { self->cluster->deliver_to_worker(self, message); });
}

// A transport that is closed still delivers its last messages.
void Stream::close(const std::string&) {
  const absl::Duration end = cluster->timeline.random.between(absl::ZeroDuration(), absl::Milliseconds(500));
  if (is_late) {
    cluster->timeline.after(end / 2, [self = shared_from_this()] { self->cluster->deliver_late(self); });
  }
  cluster->timeline.after(end, [self = shared_from_this()] { self->cluster->end_at_controller(self); });
}

void Cluster::deliver_to_worker(const std::shared_ptr<Stream>& stream, const v1::ControllerMessage& message) {
  if (!stream->at_worker) return;
  if (!stream->link->to_worker || !stream->held_to_worker.empty()) {
    return stream->held_to_worker.push_back(message);
  }
  stream->machine->receive(stream->number, message);
}

void Cluster::from_worker(const std::string& node, Link& link, int64_t session, v1::WorkerMessage message) {
  const std::shared_ptr<Stream> stream = link.stream;
  if (stream == nullptr || stream->number != session || !stream->at_worker) return;
  const int64_t second = absl::ToInt64Seconds(timeline.now());
  if (std::exchange(link.second, second) != second) link.num_messages = 0;
  if (++link.num_messages == kMaxMessages) violate(absl::StrCat("node ", node, " sends messages without end"));
  const std::string& refusal = message.attempt().error_reason();
  if ((refusal == "NO_DEVICES" || refusal == "DEVICE_TAKEN") && on_no_devices) on_no_devices(node);
  stream->to_controller_ready = std::max(stream->to_controller_ready, timeline.now() + link.latency);
  timeline.at(stream->to_controller_ready,
              [this, stream, message = std::move(message)] { deliver_to_controller(stream, message); });
}

// Messages that were sent before a stream's end may still arrive.
void Cluster::deliver_to_controller(const std::shared_ptr<Stream>& stream, const v1::WorkerMessage& message) {
  if (controller == nullptr || stream->life != life_ || !stream->at_controller) return;
  if (stream->is_late || !stream->link->to_controller || !stream->held_to_controller.empty()) {
    return stream->held_to_controller.push_back(message);
  }
  if (timeline.now() < paused_until_) {
    return timeline.at(paused_until_, [this, stream, message] { deliver_to_controller(stream, message); });
  }
  if (stream->link->to_worker) stream->link->heard_at = timeline.now();
  if (message.has_register_()) {
    const absl::Status status = controller->open_session(message.register_(), stream);
    stream->is_known = status.ok();
    if (status.ok()) return;
    stream->at_controller = false;
    timeline.after(absl::Milliseconds(1),
                   [this, stream, reason = rpc::reason(status)] { end_at_worker(stream, reason); });
    return;
  }
  if (message.has_events()) check_events(stream, message.events());
  controller->on_message(stream->machine->name(), stream, message);
}

void Cluster::end_at_worker(const std::shared_ptr<Stream>& stream, const std::string& reason) {
  if (!std::exchange(stream->at_worker, false)) return;
  Link& link = *stream->link;
  if (link.stream == stream) link.stream = nullptr;
  stream->machine->disconnected(stream->number, reason);
}

void Cluster::end_at_controller(const std::shared_ptr<Stream>& stream) {
  if (timeline.now() < paused_until_) {
    return timeline.at(paused_until_, [this, stream] { end_at_controller(stream); });
  }
  if (!std::exchange(stream->at_controller, false)) return;
  if (controller != nullptr && stream->life == life_) controller->close_session(stream->machine->name(), stream.get());
}

void Cluster::break_stream(const std::shared_ptr<Stream>& stream) {
  timeline.after(timeline.random.between(absl::ZeroDuration(), absl::Milliseconds(200)),
                 [this, stream] { end_at_worker(stream, ""); });
  // Sometimes the controller notices the end only after a new stream exists.
  const absl::Duration max_delay = timeline.random.chance(0.2) ? absl::Seconds(5) : absl::Milliseconds(200);
  timeline.after(timeline.random.between(absl::ZeroDuration(), max_delay),
                 [this, stream] { end_at_controller(stream); });
}

// A live machine's kernel ends its streams; a dead machine's streams end when nothing answers any more.
void Cluster::daemon_died(const std::string& node, bool with_machine) {
  const std::shared_ptr<Stream> stream = std::exchange(links[node].stream, nullptr);
  if (stream == nullptr) return;
  stream->at_worker = false;
  timeline.after(with_machine ? kKeepalive : absl::Milliseconds(1), [this, stream] { end_at_controller(stream); });
}

void Cluster::reset_stream(const std::string& node) {
  if (const std::shared_ptr<Stream> stream = links[node].stream) break_stream(stream);
}

void Cluster::delay_stream(const std::string& node, absl::Duration delay) {
  Link& link = links[node];
  const std::shared_ptr<Stream> stream = link.stream;
  if (stream == nullptr || !stream->is_known) return;
  if (timeline.random.chance(0.3)) {  // Delays the first message of the next stream instead.
    link.late_hello = delay;
    return break_stream(stream);
  }
  delay_messages(stream, delay);
}

// The worker gives the stream up, and its messages arrive after those of a newer one.
void Cluster::delay_messages(const std::shared_ptr<Stream>& stream, absl::Duration delay) {
  stream->is_late = true;
  timeline.after(timeline.random.between(absl::ZeroDuration(), absl::Milliseconds(200)),
                 [this, stream] { end_at_worker(stream, ""); });
  timeline.after(delay, [this, stream] {
    deliver_late(stream);
    end_at_controller(stream);
  });
}

void Cluster::deliver_late(const std::shared_ptr<Stream>& stream) {
  if (!std::exchange(stream->is_late, false)) return;
  for (const v1::WorkerMessage& message : std::exchange(stream->held_to_controller, {})) {
    deliver_to_controller(stream, message);
  }
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

void Cluster::try_to_connect(Machine& machine, Link& link) {
  timeline.after(timeline.random.between(absl::Milliseconds(500), absl::Seconds(1)),
                 [this, &machine, &link] { try_to_connect(machine, link); });
  if (!machine.daemon_runs() || !link.to_worker || !link.to_controller) return;
  if (link.stream != nullptr && link.stream->at_worker) return;
  if (!controller_answers()) return machine.disconnected(0, "");
  auto stream = std::make_shared<Stream>();
  stream->cluster = this;
  stream->machine = &machine;
  stream->link = &link;
  stream->number = ++link.sessions;
  stream->life = life_;
  link.stream = stream;
  v1::WorkerMessage hello;
  *hello.mutable_register_() = machine.hello();
  from_worker(machine.name(), link, stream->number, std::move(hello));
  const absl::Duration delay = std::exchange(link.late_hello, absl::ZeroDuration());
  if (delay > absl::ZeroDuration()) delay_messages(stream, delay);
}

// --- Cluster ---

Cluster::Cluster(uint64_t seed, int nodes, int devices)
    : timeline(seed),
      ranks(timeline, storage),
      store(timeline),
      watch_checker_(store, [this](const std::string& what) { violate(what); }) {
  store.before_each = [this] { watch_checker_.look(); };
  store.after_each = [this](const std::vector<std::string>& jobs, int64_t revision) {
    watch_checker_.committed(jobs, revision);
  };
  ranks.machine = [this](const std::string& node) -> Machine& { return *machines.at(node); };
  ranks.reachable = [this](const std::string& node) { return links[node].data && machines.at(node)->up; };
  ranks.may_be_outdated = [this] { return store.was_full_just_now(); };
  ranks.violated = [this](const std::string& what) { violate(what); };
  for (int i = 1; i <= nodes; ++i) {
    const std::string name = absl::StrCat("n", i);
    auto machine = std::make_unique<Machine>(timeline, storage, ranks, name, devices);
    Link& link = links[name];
    link.latency = timeline.random.between(absl::Microseconds(50), absl::Milliseconds(3));
    machine->on_send = [this, name, &link](int64_t session, v1::WorkerMessage message) {
      from_worker(name, link, session, std::move(message));
    };
    machine->on_reset = [this, name](int64_t session) {
      const std::shared_ptr<Stream> stream = links[name].stream;
      if (stream == nullptr || stream->number != session) return;
      if (on_unanswered) on_unanswered(name);
      break_stream(stream);
    };
    machine->violated = [this](const std::string& what) { violate(what); };
    machine->on_death = [this, name](bool with_machine) { daemon_died(name, with_machine); };
    machines.emplace(name, std::move(machine));
  }
  start_controller();
  for (auto& [name, machine] : machines) {
    machine->start_daemon();
    try_to_connect(*machine, links[name]);
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

// Records the controller's decisions as its journal gets them.
struct SeenJournal : journal::Journal {
  explicit SeenJournal(Cluster& owner) : cluster(owner) {}
  void write(const journal::Line& line) override { cluster.note(line); }
  Cluster& cluster;
};

void Cluster::note(const journal::Line& line) {
  const auto add = [this](absl::string_view text) {
    for (const char byte : text) digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;  // FNV-1a.
  };
  add(line.event);
  add(absl::StrCat(absl::ToInt64Nanoseconds(timeline.now())));
  for (const auto& [key, value] : line.fields) add(value);
  if (traces) trace(absl::StrCat("  ", journal::format(line)));
  if (on_line) on_line(line);
}

void Cluster::start_controller() {
  trace("controller starts");
  if (controller != nullptr) return;
  ++life_;
  reconcile::ReconcilerOptions options;
  options.cluster = "simulated";
  options.jitter = [this] { return timeline.random.fraction(); };
  options.new_id = [this] { return absl::StrCat("id", ++ids_); };
  options.journal = std::make_shared<SeenJournal>(*this);
  options.leader_epoch = life_;
  measures_ = std::make_unique<reconcile::Measures>(metrics_);
  auto opened = reconcile::Reconciler::open(store, clock, options, *measures_);
  if (!opened.ok()) return violate(absl::StrCat("the controller does not start: ", opened.status().message()));
  controller = *std::move(opened);
  watch_checker_.follow(&controller->published());
  const reconcile::Published::Batch all = controller->published().page(/*after_order=*/0, /*limit=*/1 << 20);
  cursor_ = all.next_cursor;
  first_revision_ = all.revision;
  history_.clear();
  paused_until_ = absl::ZeroDuration();
  check_acknowledged();
  if (on_start) on_start();
  is_starting = true;
  for (const reconcile::PublishedViewPtr& view : all.views) {
    if (on_view) on_view(*view);
  }
  is_starting = false;
  if (on_started) on_started();
}

void Cluster::crash_controller() {
  if (controller == nullptr) return;
  watch();
  watch_checker_.look();
  watch_checker_.follow(nullptr);
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

void Cluster::crash_controller_after(size_t transactions) {
  store.crash_after = transactions;
  store.on_crash = [this] {
    crash_controller();
    timeline.after(absl::Seconds(1), [this] { start_controller(); });
  };
}

void Cluster::restore_store(const std::vector<store::Record>& records) {
  crash_controller();
  store.replace(records);
}

void Cluster::tick() {
  timeline.after(kTick, [this] { tick(); });
  if (!controller_answers()) return;
  controller->tick();
  watch();
  check_machines();
}

void Cluster::watch() {
  while (controller != nullptr) {
    const absl::StatusOr<reconcile::Published::Batch> batch = controller->published().changes(cursor_, 100);
    if (!batch.ok()) return violate(absl::StrCat("the watch fell behind: ", batch.status().message()));
    for (const reconcile::PublishedViewPtr& view : batch->views) {
      history_.push_back({view->revision, view->record->uid, reconcile::approximate_bytes(*view)});
      if (on_view) on_view(*view);
    }
    cursor_ = batch->next_cursor;
    if (batch->views.empty()) return resume_watch();
  }
}

// A watcher that has seen everything up to some revision gets every later change.
void Cluster::resume_watch() {
  if (history_.empty() || !timeline.random.chance(0.05)) return;
  const int64_t seen = history_[timeline.random.next() % history_.size()].revision;
  if (seen < first_revision_) return;  // An older change that was shown again.
  const absl::StatusOr<int64_t> cursor = controller->published().cursor_after(seen);
  size_t changes = 0, bytes = 0;
  for (const Change& one : history_) {
    if (one.revision < seen) continue;
    ++changes;
    bytes += one.bytes;
  }
  const reconcile::Published::Limits limits;
  if (absl::IsOutOfRange(cursor.status()) && (changes > limits.changes || bytes > limits.bytes))
    return;  // The watcher has to start again.
  if (!cursor.ok()) return violate(absl::StrCat("a watch cannot resume after revision ", seen));
  const absl::StatusOr<reconcile::Published::Batch> after = controller->published().changes(*cursor, 1 << 20);
  const auto is_newer = [seen = seen](int64_t revision) { return revision > seen; };
  std::vector<std::pair<int64_t, std::string>> expected, shown;
  for (const Change& one : history_) {
    if (is_newer(one.revision)) expected.emplace_back(one.revision, one.uid);
  }
  for (const reconcile::PublishedViewPtr& view : after->views) {
    if (is_newer(view->revision)) shown.emplace_back(view->revision, view->record->uid);
  }
  if (shown != expected)
    violate(absl::StrCat("a watch that resumes after revision ", seen, " does not get everything"));
}

// --- Events of workers ---

int64_t Cluster::cursor_of(const std::string& uid, int attempt, int rank) const {
  const auto record = store.get(core::cursor_key(uid, attempt, rank));
  int64_t cursor = 0;
  if (record.ok() && record->has_value() && !absl::SimpleAtoi((*record)->value, &cursor)) return 0;
  return cursor;
}

// A cursor with a lost record does not exist until the next event is acknowledged.
bool Cluster::is_excused(const std::string& uid, int attempt, int rank, int64_t cursor) const {
  return excused_events || (cursor == 0 && lost_cursors.count({uid, attempt, rank}) > 0);
}

// After a start, the store has every event that workers no longer repeat.
void Cluster::check_acknowledged() {
  for (const auto& [name, machine] : machines) {
    if (machine->core() == nullptr) continue;
    for (const auto& [key, attempt] : machine->core()->state().attempts) {
      const reconcile::JobViewPtr view = controller->published().find(key.job_uid);
      if (view == nullptr || job::is_final(view->record->state)) continue;
      for (const node::RankState& rank : attempt.ranks) {
        const int64_t cursor = cursor_of(key.job_uid, key.number, rank.rank);
        if (rank.tail.acknowledged().sequence <= cursor) continue;
        if (is_excused(key.job_uid, key.number, rank.rank, cursor)) continue;
        violate(absl::StrCat("event ", rank.tail.acknowledged().sequence, " of rank ", rank.rank, " of ", key.job_uid,
                             " was acknowledged, and the store has ", cursor));
      }
    }
  }
}

// The first events of a rank in a session continue at the store's cursor or before it.
void Cluster::check_events(const std::shared_ptr<Stream>& stream, const v1::RankEvents& events) {
  const node::AttemptKey key{events.id().job_uid(), events.id().number()};
  if (events.events().empty() || !stream->ranks_heard.insert({key, events.rank()}).second) return;
  const reconcile::JobViewPtr view = controller->published().find(key.job_uid);
  if (view == nullptr || job::is_final(view->record->state)) return;
  const int64_t cursor = cursor_of(key.job_uid, key.number, events.rank());
  if (traces) {
    trace(absl::StrCat("  session ", stream->number, " of ", stream->machine->name(), " brings events of rank ",
                       events.rank(), " of ", key.job_uid, "/", key.number, " from ", events.events(0).sequence(),
                       ", and the store has ", cursor));
  }
  if (events.events(0).sequence() <= cursor + 1) return;
  if (is_excused(key.job_uid, key.number, events.rank(), cursor)) return;
  violate(absl::StrCat("events of rank ", events.rank(), " of ", key.job_uid, " continue at ",
                       events.events(0).sequence(), ", and the store has ", cursor));
}

// --- Senders that must be ignored ---

void Cluster::send_as(const std::string& node, const v1::WorkerMessage& message) {
  Link& link = links[node];
  if (link.stream != nullptr) from_worker(node, link, link.stream->number, message);
}

void Cluster::command_as_earlier_leader(const std::string& node, v1::ControllerMessage message) {
  const std::shared_ptr<Stream> stream = links[node].stream;
  if (stream == nullptr || life_ < 2) return;
  message.set_leader_epoch(life_ - 1);
  deliver_to_worker(stream, message);
}

void Cluster::pause_controller(absl::Duration pause) {
  if (!controller_answers()) return;
  paused_until_ = timeline.now() + pause;
  // Its own clock may wake it before it gets the messages that arrived meanwhile.
  if (!timeline.random.chance(0.5)) return;
  timeline.at(paused_until_, [this] {
    if (controller_answers()) controller->tick();
  });
}

void Cluster::check_machines() {
  for (const auto& [name, machine] : machines) {
    for (const std::string& what : machine->double_use()) violate(what);
  }
}

}  // namespace titan::simulation
