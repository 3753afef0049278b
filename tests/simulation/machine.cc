#include "tests/simulation/machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/launch_facts.h"

namespace titan::simulation {
namespace {

constexpr int64_t kEventBytes = 100;
constexpr int kSigkill = 9;
constexpr char kNoSpace[] = "No space left on device";

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

template <typename E>
constexpr bool kOnFolder = std::is_same_v<E, node::RaiseFence> || std::is_same_v<E, node::AddRecord> ||
                           std::is_same_v<E, node::WriteRecord> || std::is_same_v<E, node::WritePlaces> ||
                           std::is_same_v<E, node::ForgetAttempt> || std::is_same_v<E, node::DeleteFolder> ||
                           std::is_same_v<E, node::WriteCluster> || std::is_same_v<E, node::WriteLeaderEpoch>;
template <typename E>
constexpr bool kOnSharedStorage = std::is_same_v<E, node::PrepareFolder> || std::is_same_v<E, node::CheckToken>;
template <typename E>
constexpr bool kAtOnce =
    std::is_same_v<E, node::Send> || std::is_same_v<E, node::WatchSpools> || std::is_same_v<E, node::UnwatchSpools> ||
    std::is_same_v<E, node::ResetSession> || std::is_same_v<E, node::Log> || std::is_same_v<E, node::SendToShim> ||
    std::is_same_v<E, node::KillShim>;

node::LaunchFacts read_facts(const std::string& launch_json) {
  const absl::StatusOr<rank_protocol::Launch> launch =
      rank_protocol::launch_from_json(nlohmann::json::parse(launch_json));
  return launch.ok() ? node::facts_of(*launch) : node::LaunchFacts();
}

// The nodes of one attempt get one launch file: it is parsed once, because it names all ranks. Several attempts may be
// prepared at the same time.
const node::LaunchFacts& facts_of(const std::string& launch_json) {
  thread_local std::deque<std::pair<std::string, node::LaunchFacts>> known;
  constexpr size_t kKnown = 8;
  const auto it = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == launch_json; });
  if (it != known.end()) return it->second;
  if (known.size() == kKnown) known.pop_front();
  return known.emplace_back(launch_json, read_facts(launch_json)).second;
}

}  // namespace

Machine::Machine(Timeline& timeline, Storage& storage, Training& training, std::string name, int devices)
    : timeline_(timeline), storage_(storage), training_(training), name_(std::move(name)), devices_(devices) {
  skew = timeline.random.between(absl::Seconds(-5), absl::Seconds(5));
}

// A machine's clocks count whole nanoseconds; the timeline is finer.
Now Machine::now() const {
  const absl::Duration monotonic = timeline_.now() + absl::Hours(1);
  const absl::Time wall = timeline_.clock.now() + skew;
  return {absl::Trunc(monotonic, absl::Nanoseconds(1)), absl::FromUnixNanos(absl::ToUnixNanos(wall))};
}

absl::Duration Machine::delay() {
  const absl::Duration max_delay = slow_disk ? absl::Seconds(3) : absl::Milliseconds(10);
  return timeline_.random.between(absl::Microseconds(100), max_delay);
}

// --- Daemon ---

void Machine::start_daemon() {
  if (!up || core_ != nullptr || torn_) return;
  ++life_;
  node::NodeConfig config;
  config.node = name_;
  config.address = name_ + ".local";
  config.version = "simulated";
  config.instance = "instance-" + name_;
  config.boot_id = boot_;
  config.resources.set_device("cpu");
  config.resources.set_devices(devices_);
  config.resources.set_cpu_cores(devices_);
  config.labels["rack"] = absl::StrCat(name_.back() % 2);
  folder_ready_ = timeline_.now();
  for (auto& [key, shim] : shims_) shim.link = 0;
  core_ = std::make_unique<node::NodeCore>(config, disk_.cluster, disk_.epoch, now());
  for (const auto& [key, record] : disk_.records) {
    if (record.phase == node::AttemptRecord::Phase::kForgotten) continue;
    node::RecoveredAttempt found;
    found.record = record;
    found.places = disk_.places[key];
    found.facts = disk_.facts[key];
    const SimShim* entry = shim(key);
    found.shim =
        entry != nullptr && entry->alive ? node::RecoveredAttempt::Shim::kAlive : node::RecoveredAttempt::Shim::kGone;
    if (entry != nullptr) {
      found.status = entry->written;
      for (const Rank& rank : entry->ranks) {
        if (rank.exit) found.exits.push_back(*rank.exit);
      }
    }
    feed(found);
  }
  wake();
  timeline_.after(absl::Milliseconds(500), [this, life = life_] {
    if (life == life_) read_beacons();
  });
}

void Machine::kill_daemon() {
  if (core_ != nullptr && on_death) on_death(/*with_machine=*/false);
  core_.reset();
  ++life_;
  wake_at_ = absl::InfiniteDuration();
  watched_.clear();
  for (auto& [key, shim] : shims_) shim.link = 0;
}

void Machine::crash() {
  if (core_ != nullptr && on_death) on_death(/*with_machine=*/true);
  core_.reset();
  kill_daemon();
  up = false;
  for (auto& [key, shim] : shims_) {
    shim.alive = false;
    for (Rank& rank : shim.ranks) {
      if (!std::exchange(rank.running, false)) continue;
      training_.on_rank_exit(key, name_);
    }
  }
}

void Machine::boot() {
  up = true;
  boot_ = absl::StrCat("boot", ++boots_);
  start_daemon();
}

// A record is gone only if the machine crashed while the record was in the page cache; otherwise it is unreadable.
void Machine::tear_record() {
  std::vector<node::AttemptKey> keys;
  for (const auto& [key, record] : disk_.records) {
    if (record.phase != node::AttemptRecord::Phase::kForgotten) keys.push_back(key);
  }
  if (keys.empty() || torn_) return;
  torn_ = keys[static_cast<size_t>(timeline_.random.between(0, static_cast<int>(keys.size()) - 1))];
  if (!up && timeline_.random.chance(0.5)) remove_torn_record();
}

void Machine::remove_torn_record() {
  if (!torn_) return;
  kill_shim(*torn_);
  const SimShim* entry = shim(*torn_);
  const bool any = entry != nullptr &&
                   std::any_of(entry->ranks.begin(), entry->ranks.end(), [](const Rank& rank) { return rank.running; });
  if (any) return timeline_.after(absl::Seconds(1), [this] { remove_torn_record(); });
  disk_.records.erase(*torn_);
  disk_.places.erase(*torn_);
  disk_.facts.erase(*torn_);
  torn_.reset();
  start_daemon();
}

void Machine::receive(int64_t session, const v1::ControllerMessage& message) {
  const bool is_command = !message.has_welcome() && !message.has_beat_ack();
  if (core_ != nullptr && !(idle && is_command)) feed(node::Command{session, message});
}

void Machine::disconnected(int64_t session, const std::string& reason) {
  if (core_ != nullptr) feed(node::Disconnected{session, reason});
}

void Machine::feed(const node::Input& input) {
  if (core_ == nullptr) return;
  for (node::Effect& effect : core_->step(input, now())) plan(std::move(effect));
  if (core_ != nullptr) wake();
}

// Schedules a tick for the core's next deadline.
void Machine::wake() {
  const absl::Duration at = std::max(timeline_.now(), core_->next_deadline() - absl::Hours(1));
  if (at >= wake_at_) return;
  wake_at_ = at;
  timeline_.at(at, [this, at, life = life_] {
    if (life != life_ || wake_at_ != at) return;
    wake_at_ = absl::InfiniteDuration();
    feed(node::Tick{});
  });
}

void Machine::later(absl::Duration after, node::Input input) {
  timeline_.after(after, [this, life = life_, input = std::move(input)] {
    if (life == life_) feed(input);
  });
}

void Machine::plan(node::Effect effect) {
  absl::Duration at = timeline_.now();
  std::visit(
      [&](const auto& what) {
        using E = std::decay_t<decltype(what)>;
        if (kAtOnce<E>) return;
        at += delay();
        if (!kOnFolder<E>) return;
        at = std::max(at, folder_ready_);
        folder_ready_ = at;
      },
      effect);
  if (at == timeline_.now()) return perform(effect);
  timeline_.at(at, [this, life = life_, effect = std::move(effect)]() mutable {
    if (life == life_) perform(effect);
  });
}

// Fails effects as a state folder on a full disk does. Existing files stay.
bool Machine::fail_if_disk_full(const node::Effect& effect) {
  return std::visit(
      [&](const auto& it) {
        using E = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<E, node::RaiseFence>) {
          feed(node::FenceRaised{it.op, 0, kNoSpace});
        } else if constexpr (std::is_same_v<E, node::PrepareFolder>) {
          node::FolderPrepared done;
          done.op = it.op;
          done.refusal = {"STATE_FOLDER_UNUSABLE", kNoSpace};
          feed(done);
        } else if constexpr (std::is_same_v<E, node::SpawnShim>) {
          feed(node::ShimSpawned{it.op, 0, 0, kNoSpace});
        } else if constexpr (kOnFolder<E> && !std::is_same_v<E, node::DeleteFolder>) {
          feed(node::Written{it.op, kNoSpace});
        } else {
          return false;
        }
        return true;
      },
      effect);
}

void Machine::perform(node::Effect& effect) {
  if (disk_full && fail_if_disk_full(effect)) return;
  if (hung_storage) {  // Tries again, because mounts come back.
    const bool waits =
        std::visit([](const auto& what) { return kOnSharedStorage<std::decay_t<decltype(what)>>; }, effect);
    if (waits) {
      return timeline_.after(absl::Seconds(1), [this, life = life_, effect = std::move(effect)]() mutable {
        if (life == life_) perform(effect);
      });
    }
  }
  std::visit(Overloaded{
                 [&](node::Send& it) { on_send(it.session, std::move(it.message)); },
                 [&](const node::ResetSession& it) { on_reset(it.session); },
                 [&](const node::RaiseFence& it) {
                   int& fence = disk_.fences[it.key.job_uid];
                   fence = std::max(fence, it.key.number);
                   feed(node::FenceRaised{it.op, fence, ""});
                 },
                 [&](const node::AddRecord& it) {
                   disk_.records[it.record.key] = it.record;
                   disk_.places.erase(it.record.key);
                   shims_.erase(it.record.key);
                   feed(node::Written{it.op, ""});
                 },
                 [&](const node::WriteRecord& it) {
                   disk_.records[it.record.key] = it.record;
                   feed(node::Written{it.op, ""});
                 },
                 [&](const node::PrepareFolder& it) {
                   node::FolderPrepared done;
                   done.op = it.op;
                   if (refuses) {
                     done.refusal = {"LAUNCH_FAILED", "this machine is broken"};
                     return feed(done);
                   }
                   done.facts = disk_.facts[it.record.key] = facts_of(it.launch_json);
                   done.facts.start_unix_nanos = now().wall_ns();
                   if (it.record.leader) {
                     DumpFolder& folder = storage_[it.record.dump_folder];
                     if (folder.id.empty()) folder.id = absl::StrCat("id:", it.record.dump_folder);
                     done.folder_id = folder.id;
                   }
                   feed(done);
                 },
                 [&](const node::CheckToken& it) {
                   feed(node::TokenChecked{it.op, {}});
                 },
                 [&](const node::SpawnShim& it) {
                   const node::AttemptRecord& record = disk_.records.at(it.key);
                   if (shims_.count(it.key) > 0) {
                     violated(absl::StrCat("attempt ", it.key.number, " of ", it.key.job_uid, " gets a second shim"));
                   }
                   SimShim& made = shims_[it.key] = {};
                   made.pid = ++last_pid_;
                   made.link = it.op;
                   made.orphan_timeout = record.orphan_timeout_seconds;
                   made.orphan_at = timeline_.now() + absl::Seconds(made.orphan_timeout);
                   for (const int rank : record.ranks) made.ranks.push_back({.rank = rank});
                   made.written = status_of(made);
                   feed(node::ShimSpawned{it.op, made.pid, made.pid, ""});
                   send_to_daemon(it.key, {.kind = node::ShimEvent::Kind::kStatus, .status = *made.written});
                 },
                 [&](const node::FindShim& it) {
                   node::ShimLookup found;
                   found.op = it.op;
                   SimShim* entry = shim(it.key);
                   if (unreadable) {
                     found.why = "Input/output error";
                     return feed(found);
                   }
                   if (entry != nullptr && entry->alive) {
                     found.state = node::ShimLookup::State::kLinked;
                     entry->link = it.op;
                     feed(found);
                     return send_to_daemon(it.key,
                                           {.kind = node::ShimEvent::Kind::kStatus, .status = status_of(*entry)});
                   }
                   found.state = node::ShimLookup::State::kGone;
                   if (entry != nullptr) {
                     found.status = entry->written;
                     for (const Rank& rank : entry->ranks) {
                       if (rank.exit) found.exits.push_back(*rank.exit);
                     }
                   }
                   feed(found);
                 },
                 [&](const node::CheckRanks& it) {
                   node::RanksChecked seen;
                   seen.op = it.op;
                   seen.same_boot = it.boot == boot_;
                   if (unreadable) {
                     seen.unknown = seen.exits_unknown = "Input/output error";
                     return feed(seen);
                   }
                   if (const SimShim* entry = shim(it.key); entry != nullptr) {
                     for (const Rank& rank : entry->ranks) {
                       if (rank.running) seen.alive.push_back({rank.rank, rank.pid, unkillable ? 'D' : 'R'});
                       if (rank.exit) seen.exits.push_back(*rank.exit);
                     }
                   }
                   if (it.kill_left && !unkillable) kill_ranks(it.key);
                   feed(seen);
                 },
                 [&](const node::KillShim& it) { kill_shim(it.key); },
                 [&](const node::SendToShim& it) {
                   SimShim* entry = shim(it.key);
                   if (entry != nullptr && entry->alive && entry->link == it.link) run_shim_command(it.key, it.command);
                 },
                 [&](const node::ReadSpool& it) {
                   node::SpoolRead read;
                   read.op = it.op;
                   read.next_offset = it.offset;
                   const Rank* entry = rank(it.key, it.rank);
                   const auto lines = entry == nullptr ? int64_t{0} : static_cast<int64_t>(entry->spool.size());
                   for (int64_t at = it.offset / kEventBytes; at < lines; ++at) {
                     if (read.next_offset - it.offset >= it.max_bytes) break;
                     read.next_offset = (at + 1) * kEventBytes;
                     read.lines.push_back({at + 1, entry->spool[static_cast<size_t>(at)], read.next_offset});
                   }
                   feed(read);
                 },
                 [&](const node::AnswerDiagnosis& it) {
                   v1::WorkerMessage message;
                   *message.mutable_diagnosis()->mutable_id() = it.request.id();
                   for (const node::AnswerDiagnosis::Rank& each : it.ranks) {
                     *message.mutable_diagnosis()->mutable_rank()->mutable_status() = each.status;
                     message.mutable_diagnosis()->set_end(&each == &it.ranks.back());
                     on_send(it.session, message);
                   }
                   if (it.ranks.empty()) {
                     message.mutable_diagnosis()->set_end(true);
                     on_send(it.session, std::move(message));
                   }
                 },
                 [&](const node::ReadLogTail& it) {
                   node::LogTailRead read;
                   read.op = it.op;
                   read.text = absl::StrCat("rank ", it.rank, " of attempt ", it.key.number, "\n");
                   feed(read);
                 },
                 [&](const node::WatchSpools& it) {
                   for (const int rank : it.ranks) watched_.insert({it.key, rank});
                 },
                 [&](const node::UnwatchSpools& it) {
                   for (const int rank : it.ranks) watched_.erase({it.key, rank});
                 },
                 [&](const node::WritePlaces& it) {
                   disk_.places[it.key] = it.places;
                   feed(node::Written{it.op, ""});
                 },
                 [&](const node::ForgetAttempt& it) {
                   disk_.records[it.record.key] = it.record;
                   feed(node::Written{it.op, ""});
                 },
                 [&](const node::DeleteFolder& it) { disk_.records.erase(it.key); },
                 [&](const node::CleanUp& it) {
                   feed(node::Written{it.op, ""});
                 },
                 [&](const node::WriteCluster& it) {
                   disk_.cluster = it.cluster;
                   feed(node::Written{it.op, ""});
                 },
                 [&](const node::WriteLeaderEpoch& it) {
                   disk_.epoch = it.epoch;
                   feed(node::Written{it.op, ""});
                 },
                 [](const auto&) {},
             },
             effect);
}

void Machine::read_beacons() {
  node::BeaconsRead seen;
  for (const auto& [key, shim] : shims_) {
    for (const Rank& rank : shim.ranks) {
      if (!rank.running) continue;
      node::BeaconsRead::Item& item = seen.items.emplace_back();
      item.key = key;
      item.status.set_rank(rank.rank);
      item.status.set_step(rank.step);
      item.status.set_counter(rank.counter);
      item.status.set_phase(rank.phase);
      item.phase_since = now().monotonic;
    }
  }
  if (!seen.items.empty()) feed(seen);
  feed(node::StateFolderChecked{disk_full ? kNoSpace : ""});
  timeline_.after(absl::Milliseconds(500), [this, life = life_] {
    if (life == life_) read_beacons();
  });
}

// --- Shims and ranks ---

Machine::SimShim* Machine::shim(const node::AttemptKey& key) {
  const auto it = shims_.find(key);
  return it == shims_.end() ? nullptr : &it->second;
}

Machine::Rank* Machine::rank(const node::AttemptKey& key, int number) {
  SimShim* entry = shim(key);
  if (entry == nullptr) return nullptr;
  for (Rank& rank : entry->ranks) {
    if (rank.rank == number) return &rank;
  }
  return nullptr;
}

// An attempt starts alone: earlier ones are gone, and no later one has been here.
void Machine::note_start(const node::AttemptKey& key) {
  int& newest = newest_[key.job_uid];
  if (key.number < newest) {
    violated(
        absl::StrCat("attempt ", key.number, " of ", key.job_uid, " starts on ", name_, " after attempt ", newest));
  }
  newest = std::max(newest, key.number);
  for (const auto& [other, shim] : shims_) {
    if (other.job_uid != key.job_uid || other.number == key.number) continue;
    for (const Rank& rank : shim.ranks) {
      if (!rank.running) continue;
      return violated(absl::StrCat("attempt ", key.number, " of ", key.job_uid, " starts on ", name_,
                                   " next to ranks of attempt ", other.number));
    }
  }
}

node::ShimStatus Machine::status_of(const SimShim& shim) const {
  node::ShimStatus status;
  status.pid = status.start_ticks = shim.pid;
  status.boot = boot_;
  status.ended = shim.ended;
  status.store_port = 4000;
  for (const Rank& rank : shim.ranks) status.ranks.push_back({rank.rank, rank.pid, rank.pid, rank.running, rank.exit});
  return status;
}

void Machine::send_to_daemon(const node::AttemptKey& key, node::ShimEvent event) {
  const SimShim& entry = shims_.at(key);
  if (entry.link == 0) return;
  event.key = key;
  event.link = entry.link;
  absl::Duration& ready = link_ready_[key];
  ready = std::max(ready, timeline_.now() + timeline_.random.between(absl::Microseconds(50), absl::Milliseconds(2)));
  later(ready - timeline_.now(), std::move(event));
}

void Machine::run_shim_command(const node::AttemptKey& key, const node::ShimCommand& command) {
  using Kind = node::ShimCommand::Kind;
  SimShim& entry = shims_.at(key);
  switch (command.kind) {
    case Kind::kLease:
      entry.orphan_at =
          timeline_.now() - absl::Milliseconds(command.silence_milliseconds) + absl::Seconds(entry.orphan_timeout);
      send_to_daemon(key, {.kind = node::ShimEvent::Kind::kLease});
      return run_shims();
    case Kind::kStart:
      if (!entry.stop_reason.empty()) {
        return send_to_daemon(key, {.kind = node::ShimEvent::Kind::kStartFailed, .error = "the attempt was stopped"});
      }
      if (std::exchange(entry.started, true)) {
        return send_to_daemon(key, {.kind = node::ShimEvent::Kind::kStarted, .status = status_of(entry)});
      }
      note_start(key);
      for (Rank& rank : entry.ranks) {
        rank.pid = ++last_pid_;
        rank.running = true;
      }
      entry.written = status_of(entry);
      send_to_daemon(key, {.kind = node::ShimEvent::Kind::kStarted, .status = *entry.written});
      return training_.started(*this, key);
    case Kind::kCheckpoint:
      return training_.on_save_requested(key, /*leave=*/false);
    case Kind::kStacks:
      return send_to_daemon(key, {.kind = node::ShimEvent::Kind::kStacks});
    case Kind::kStop:
      break;
  }
  if (entry.stop_reason.empty()) entry.stop_reason = command.reason.empty() ? "STOPPED" : command.reason;
  if (command.save && command.grace_milliseconds > 0 && entry.started) training_.on_save_requested(key, /*leave=*/true);
  if (command.reason == "STALE_ATTEMPT" && command.grace_milliseconds > 0) training_.killed(key, command.reason);
  if (command.grace_milliseconds <= 0) {
    training_.killed(key, command.reason);
    kill_ranks(key);
  } else {
    entry.kill_at = std::min(entry.kill_at, timeline_.now() + absl::Milliseconds(command.grace_milliseconds));
    timeline_.at(entry.kill_at, [this] { run_shims(); });
  }
  end_if_over(key);
}

// Runs what is due: kills after the grace period, and the end of ranks without a daemon.
void Machine::run_shims() {
  std::vector<node::AttemptKey> keys;
  for (const auto& [key, shim] : shims_) keys.push_back(key);
  for (const node::AttemptKey& key : keys) {
    SimShim* entry = shim(key);
    if (entry == nullptr || !entry->alive) continue;
    if (entry->orphan_at <= timeline_.now() && entry->stop_reason.empty()) {
      entry->stop_reason = "ORPHANED";
      entry->kill_at = timeline_.now() + absl::Seconds(30);
      if (entry->started) training_.on_save_requested(key, /*leave=*/true);
      timeline_.at(entry->kill_at, [this] { run_shims(); });
      end_if_over(key);
    } else if (entry->kill_at <= timeline_.now()) {
      entry->kill_at = absl::InfiniteDuration();
      kill_ranks(key);
      end_if_over(key);
    }
  }
}

void Machine::kill_ranks(const node::AttemptKey& key) {
  if (unkillable) {
    return timeline_.after(absl::Seconds(1), [this, key] {
      if (shim(key) != nullptr) kill_ranks(key);
    });
  }
  std::vector<int> running;
  for (const Rank& rank : shims_.at(key).ranks) {
    if (rank.running) running.push_back(rank.rank);
  }
  for (const int rank : running) exit_rank(key, rank, -1, kSigkill);
}

void Machine::exit_rank(const node::AttemptKey& key, int number, int code, int signal) {
  Rank* rank = this->rank(key, number);
  if (rank == nullptr || !rank->running) return;
  rank->running = false;
  rank_protocol::RankExit& exit = rank->exit.emplace();
  exit.rank = number;
  exit.exit_code = code;
  exit.signal = signal;
  exit.time_ns = now().wall_ns();
  if (signal == kSigkill) exit.stop_reason = shims_.at(key).stop_reason;
  if (shims_.at(key).alive) send_to_daemon(key, {.kind = node::ShimEvent::Kind::kExit, .exit = exit});
  training_.on_rank_exit(key, name_);
  end_if_over(key);
}

void Machine::end_if_over(const node::AttemptKey& key) {
  SimShim& entry = shims_.at(key);
  const bool any = std::any_of(entry.ranks.begin(), entry.ranks.end(), [](const Rank& rank) { return rank.running; });
  if (!entry.alive || entry.ended || any || (!entry.started && entry.stop_reason.empty())) return;
  entry.ended = true;
  entry.written = status_of(entry);
  send_to_daemon(key, {.kind = node::ShimEvent::Kind::kEnded, .status = *entry.written});
  if (entry.link != 0) {
    later(link_ready_[key] - timeline_.now(), node::ShimClosed{key, entry.link});
  }
  entry.alive = false;
}

// The kernel kills the shim's ranks with it, and nobody records their exits.
void Machine::kill_shim(const node::AttemptKey& key) {
  SimShim* entry = shim(key);
  if (entry == nullptr || !entry->alive) return;
  entry->alive = false;
  bool any = false;
  for (Rank& rank : entry->ranks) any = std::exchange(rank.running, rank.running && unkillable) || any;
  if (entry->link != 0) later(absl::Milliseconds(1), node::ShimClosed{key, entry->link});
  if (any) training_.on_rank_exit(key, name_);
}

void Machine::write_event(const node::AttemptKey& key, int number, const std::string& json) {
  Rank* rank = this->rank(key, number);
  if (rank == nullptr || !rank->running) return;
  rank->spool.push_back(json);
  if (watched_.count({key, number}) > 0) later(absl::Milliseconds(2), node::SpoolChanged{key, number});
}

std::set<int> Machine::devices_in_use() const {
  std::set<int> used;
  for (const auto& [key, shim] : shims_) {
    const bool any = std::any_of(shim.ranks.begin(), shim.ranks.end(), [](const Rank& rank) { return rank.running; });
    if (any) used.insert(disk_.records.at(key).devices.begin(), disk_.records.at(key).devices.end());
  }
  return used;
}

std::vector<std::string> Machine::double_use() const {
  std::vector<std::string> found;
  std::vector<const node::AttemptKey*> used;  // By device.
  for (const auto& [key, shim] : shims_) {
    const bool any = std::any_of(shim.ranks.begin(), shim.ranks.end(), [](const Rank& rank) { return rank.running; });
    if (!any) continue;
    used.resize(static_cast<size_t>(devices_));
    const node::AttemptRecord& record = disk_.records.at(key);
    if (record.devices.size() != record.ranks.size()) {
      found.push_back(absl::StrCat(record.ranks.size(), " ranks of ", key.job_uid, "/", key.number, " on ", name_,
                                   " have ", record.devices.size(), " devices"));
    }
    for (const int device : record.devices) {
      if (device < 0 || device >= devices_) {
        found.push_back(absl::StrCat("no such device: ", device, " on ", name_));
        continue;
      }
      const node::AttemptKey*& other = used[static_cast<size_t>(device)];
      if (other != nullptr) {
        found.push_back(absl::StrCat("device ", device, " of ", name_, " is used by ", key.job_uid, "/", key.number,
                                     " and ", other->job_uid, "/", other->number));
      }
      other = &key;
    }
  }
  return found;
}

}  // namespace titan::simulation
