// Chooses which faults happen, on which nodes, and in which phase of an attempt.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

bool is_of_ranks(Fault fault) {
  return fault == Fault::kRankKilled || fault == Fault::kRankStuck || fault == Fault::kShimKilled ||
         fault == Fault::kPoisonEvent || fault == Fault::kEarlierLeader || fault == Fault::kDumpFolderFull;
}

// Returns the faults that hurt most right after this event, if any.
std::vector<Fault> worst_faults_after(const std::string& event) {
  if (event == "AttemptPlaced") return {Fault::kHungStorage, Fault::kIdleDaemon, Fault::kControllerCrash};
  if (event == "AttemptStarted") return {Fault::kPartition, Fault::kHungStorage};
  if (event == "NodeLost") return {Fault::kUnkillableRanks};  // In case the node returns.
  if (event == "CancelRequested" || event == "RestartDecided" || event == "AttemptHung" || event == "RankExited") {
    return {Fault::kUnkillableRanks, Fault::kControllerCrash, Fault::kControllerPause,
            Fault::kIdleDaemon,      Fault::kPartition,       Fault::kDaemonCrash};
  }
  return {};
}

bool is_of_controller(Fault fault) {
  return fault == Fault::kControllerCrash || fault == Fault::kControllerPause || fault == Fault::kStoreRestored ||
         fault == Fault::kDiskFull || fault == Fault::kStoreRecordLost;
}

// Returns whether the fault affects no job for long: the other nodes must take the jobs that the bad node fails.
bool may_inject_with_bad_node(Fault fault) {
  return fault == Fault::kForGood || fault == Fault::kControllerCrash || fault == Fault::kControllerPause ||
         fault == Fault::kDiskFull;
}

}  // namespace

std::string name(Fault fault) {
  switch (fault) {
    case Fault::kRankKilled:
      return "rank killed";
    case Fault::kRankStuck:
      return "rank stuck";
    case Fault::kShimKilled:
      return "shim killed";
    case Fault::kMachineCrash:
      return "machine crash";
    case Fault::kDataPartition:
      return "data partition";
    case Fault::kHungStorage:
      return "hung storage";
    case Fault::kForGood:
      return "broken for good";
    case Fault::kUnkillableRanks:
      return "unkillable ranks";
    case Fault::kUnreadableState:
      return "unreadable state folder";
    case Fault::kIdleDaemon:
      return "idle daemon";
    case Fault::kPoisonEvent:
      return "poison event";
    case Fault::kLyingNode:
      return "lying node";
    case Fault::kTornRecord:
      return "torn record";
    case Fault::kNodeDiskFull:
      return "full disk of a node";
    case Fault::kDumpFolderFull:
      return "full dump folder";
    case Fault::kControllerCrash:
      return "controller crash";
    case Fault::kControllerPause:
      return "controller pause";
    case Fault::kStoreRestored:
      return "store restored";
    case Fault::kDiskFull:
      return "disk full";
    case Fault::kStreamReset:
      return "stream reset";
    case Fault::kPartition:
      return "partition";
    case Fault::kOneWayPartition:
      return "one-way partition";
    case Fault::kSlowNetwork:
      return "slow network";
    case Fault::kDaemonCrash:
      return "daemon crash";
    case Fault::kSlowDisk:
      return "slow disk";
    case Fault::kEarlierLeader:
      return "earlier leader";
    case Fault::kStoreRecordLost:
      return "store record lost";
    case Fault::kClockJump:
      return "clock jump";
    case Fault::kRepeatedMessages:
      return "repeated messages";
    case Fault::kCount:
      break;
  }
  return "none";
}

std::string name(Phase phase) {
  switch (phase) {
    case Phase::kPlaced:
      return "placed";
    case Phase::kPrepare:
      return "prepare";
    case Phase::kStart:
      return "start";
    case Phase::kRunning:
      return "running";
    case Phase::kSaving:
      return "saving";
    case Phase::kStopping:
      return "stopping";
    case Phase::kRecovering:
      return "recovering";
    case Phase::kCount:
      break;
  }
  return "none";
}

bool can_inject(Fault fault, Phase phase) {
  if (fault == Fault::kLyingNode) return phase == Phase::kRunning || phase == Phase::kSaving;
  if (!is_of_ranks(fault)) return true;
  return phase == Phase::kStart || phase == Phase::kRunning || phase == Phase::kSaving || phase == Phase::kStopping;
}

// Returns the phase of an unfinished job, or nothing while it waits for its first attempt.
std::optional<Phase> Scenario::phase_of(const std::string& uid, const Shown& shown) {
  if (shown.over || shown.state == "QUEUED") return std::nullopt;
  if (shown.state == "STOPPING") return Phase::kStopping;
  if (shown.state == "RECOVERING") return Phase::kRecovering;
  const node::AttemptKey key{uid, shown.attempt};
  bool is_known = false, saves = shown.state == "CHECKPOINTING";
  for (const auto& [name, ranks] : shown.used) {
    Machine& machine = *cluster_.machines.at(name);
    is_known = is_known || (machine.core() != nullptr && machine.core()->state().attempts.count(key) > 0);
    if (const Machine::SimShim* shim = machine.shim(key)) saves = saves || shim->ranks.front().phase == "checkpoint";
  }
  if (shown.state == "RESERVING") return is_known ? Phase::kPrepare : Phase::kPlaced;
  if (shown.state == "STARTING") return Phase::kStart;
  return saves ? Phase::kSaving : Phase::kRunning;
}

void Scenario::note_hits(Fault fault, const std::string& node, const node::AttemptKey& running) {
  ++outcome_.faults[fault];
  for (const auto& [uid, shown] : shown_) {
    const bool is_hit =
        is_of_controller(fault) ||
        (is_of_ranks(fault) ? uid == running.job_uid : shown.used.count(node) > 0 || shown.reserved.count(node) > 0);
    if (!is_hit) continue;
    if (const std::optional<Phase> phase = phase_of(uid, shown)) ++outcome_.hits[{fault, *phase}];
  }
}

void Scenario::trouble(const std::string& node, absl::Duration last) {
  troubled_[node] = std::max(troubled_[node], cluster_.timeline.now() + last);
}

// Strikes right after a decision, before it has taken effect.
void Scenario::inject_at_worst(const std::string& event, const std::string& uid, std::string node) {
  const auto shown = shown_.find(uid);
  if (node.empty() && shown != shown_.end() && !shown->second.used.empty()) {
    auto chosen = shown->second.used.begin();
    std::advance(chosen, random_.between(0, static_cast<int>(shown->second.used.size()) - 1));
    node = chosen->first;
  }
  if (node.empty()) node = random_node();
  Fault fault = random_fault();
  const std::vector<Fault> worst = worst_faults_after(event);
  if (!worst.empty() && random_.chance(0.5)) {
    fault = worst[static_cast<size_t>(random_.between(0, static_cast<int>(worst.size()) - 1))];
  }
  cluster_.timeline.after(random_.between(absl::ZeroDuration(), absl::Milliseconds(10)), [this, node, fault] {
    if (!resting_) inject(fault, node);
  });
}

void Scenario::inject(Fault fault, const std::string& node) {
  Machine& machine = *cluster_.machines.at(node);
  if (machine.for_good || (size_.one_bad_node && !may_inject_with_bad_node(fault))) return;
  Link& link = cluster_.links[node];
  const absl::Duration soon = random_seconds(0.1, 8), later = random_seconds(1, 40),
                       much_later = random_seconds(5, 120);
  const absl::Duration cut = random_.chance(0.4) ? much_later : later;  // Longer than a job waits for its nodes.
  const auto after = [this, &node](absl::Duration last, std::function<void()> what) {
    trouble(node, last);
    cluster_.timeline.after(last, std::move(what));
  };
  node::AttemptKey running;
  for (const auto& [key, shim] : machine.shims()) {
    if (shim.alive && shim.started && !shim.ended) running = key;
  }
  Machine::SimShim* shim = machine.shim(running);
  note_hits(fault, node, running);
  cluster_.trace(absl::StrCat("FAULT ", name(fault), " at ", node, " of ", running.job_uid, "/", running.number));
  switch (fault) {
    case Fault::kRankKilled:
      if (shim != nullptr) machine.exit_rank(running, shim->ranks.front().rank, -1, 9);
      break;
    case Fault::kRankStuck:
      if (shim != nullptr) shim->ranks.back().stuck = true;
      break;
    case Fault::kShimKilled:
      if (shim == nullptr) break;
      machine.kill_shim(running);
      trouble(node, absl::ZeroDuration());
      break;
    case Fault::kMachineCrash:
      machine.crash();
      after(later, [&machine] {
        if (!machine.up && !machine.for_good) machine.boot();
      });
      break;
    case Fault::kDataPartition:
      link.data = false;
      after(later, [&link] { link.data = true; });
      break;
    case Fault::kHungStorage:
      machine.hung_storage = true;
      after(much_later, [&machine] { machine.hung_storage = machine.for_good && machine.hung_storage; });
      break;
    case Fault::kForGood:
      break_permanently(machine);
      break;
    case Fault::kUnkillableRanks:
      machine.unkillable = true;
      after(much_later, [&machine] { machine.unkillable = machine.for_good && machine.unkillable; });
      break;
    case Fault::kUnreadableState:
      machine.unreadable = true;
      machine.kill_daemon();
      machine.start_daemon();
      if (shim != nullptr && random_.chance(0.5)) machine.exit_rank(running, shim->ranks.front().rank, -1, 9);
      after(later, [&machine] { machine.unreadable = false; });
      break;
    case Fault::kIdleDaemon:  // Until somebody restarts it.
      machine.idle = true;
      after(random_seconds(5, 180), [&machine] {
        if (machine.for_good || !std::exchange(machine.idle, false)) return;
        machine.kill_daemon();
        machine.start_daemon();
      });
      break;
    case Fault::kPoisonEvent:
      cluster_.ranks.poison();
      break;
    case Fault::kLyingNode:
      lie(node);
      break;
    case Fault::kControllerCrash:
      cluster_.crash_controller();
      cluster_.timeline.after(soon, [this] { cluster_.start_controller(); });
      break;
    case Fault::kControllerPause:
      cluster_.pause_controller(random_.chance(0.3) ? random_seconds(40, 120) : random_seconds(2, 20));
      break;
    case Fault::kStoreRestored:
      if (random_.chance(0.3)) restore_store();  // Rare, because much is excused afterwards.
      break;
    case Fault::kDiskFull:
      cluster_.store.set_full(true);
      cluster_.timeline.after(random_.chance(0.3) ? much_later : later, [this] { cluster_.store.set_full(false); });
      break;
    case Fault::kStreamReset:
      cluster_.reset_stream(node);
      trouble(node, absl::Seconds(2));
      break;
    case Fault::kPartition:
      cluster_.block(node, true, true);
      after(cut, [this, node] { cluster_.heal(node); });
      break;
    case Fault::kOneWayPartition: {
      const bool inward = random_.chance(0.5);
      cluster_.block(node, inward, !inward);
      after(cut, [this, node] { cluster_.heal(node); });
      break;
    }
    case Fault::kSlowNetwork:
      link.latency = random_seconds(0.1, 2);
      after(later, [&link] { link.latency = absl::Milliseconds(1); });
      break;
    case Fault::kDaemonCrash:
      machine.kill_daemon();
      after(soon, [&machine] { machine.start_daemon(); });
      break;
    case Fault::kSlowDisk:
      machine.slow_disk = true;
      after(later, [&machine] { machine.slow_disk = false; });
      break;
    case Fault::kEarlierLeader:
      command_of_earlier_leader(machine, running);
      break;
    case Fault::kTornRecord:
      tear_record(machine);
      after(later, [&machine] {
        machine.remove_torn_record();
        if (!machine.up && !machine.for_good) machine.boot();
      });
      break;
    case Fault::kNodeDiskFull:
      machine.disk_full = true;
      after(later, [&machine] { machine.disk_full = false; });
      break;
    case Fault::kDumpFolderFull:
      fill_dump_folder(running, later);
      break;
    case Fault::kStoreRecordLost:
      if (!random_.chance(0.3)) break;  // Rare, because much is excused afterwards.
      lose_store_record();
      cluster_.timeline.after(soon, [this] { cluster_.start_controller(); });
      break;
    case Fault::kClockJump:
      jump_clock(machine);
      break;
    case Fault::kRepeatedMessages:
      repeat_messages(node);
      break;
    case Fault::kCount:
      break;
  }
  if (!resting_ && !is_of_controller(fault) && random_.chance(0.1)) drain(node, random_seconds(40, 70));
}

// Crashes the machine, or only the daemon, whose ranks survive, and damages one of its attempt records.
void Scenario::tear_record(Machine& machine) {
  random_.chance(0.5) ? machine.crash() : machine.kill_daemon();
  machine.tear_record();
  if (machine.up) machine.start_daemon();
}

bool Scenario::fill_dump_folder(const node::AttemptKey& running, absl::Duration last) {
  const auto shown = shown_.find(running.job_uid);
  if (shown == shown_.end()) return false;
  const std::string& folder = shown->second.dump_folder;
  cluster_.ranks.full.insert(folder);
  for (const auto& [node, ranks] : shown->second.used) trouble(node, last);
  cluster_.timeline.after(last, [this, folder] { cluster_.ranks.full.erase(folder); });
  return true;
}

// Moves the wall clock of the machine or of the controller. Monotonic time is not affected.
void Scenario::jump_clock(Machine& machine) {
  absl::Duration& jumps = random_.chance(0.5) ? machine.skew : cluster_.clock.jump;
  jumps += random_.between(-absl::Hours(1), absl::Hours(1));
  clock_jumped_ = true;
}

void Scenario::repeat_messages(const std::string& node) {
  cluster_.delay_stream(node, random_seconds(0.5, 5));
  trouble(node, absl::Seconds(8));
  if (calls_.empty() || !cluster_.controller_answers()) return;
  calls_[static_cast<size_t>(random_.between(0, static_cast<int>(calls_.size()) - 1))]();
}

// Chooses the kind first, because some kinds have many more records.
void Scenario::lose_store_record() {
  cluster_.crash_controller();
  std::map<std::string, std::vector<store::Record>> kinds;
  const std::vector<store::Record> all = *store::scan_all(cluster_.store, "");
  for (const store::Record& record : all) kinds[record.key.substr(0, record.key.find('/'))].push_back(record);
  kinds.erase("quarantine");  // Records that were already lost, kept for operators.
  if (kinds.empty()) return;
  const auto kind = std::next(kinds.begin(), random_.between(0, static_cast<int>(kinds.size()) - 1));
  const auto which = random_.between(0, static_cast<int>(kind->second.size()) - 1);
  const store::Record& record = kind->second[static_cast<size_t>(which)];
  cluster_.trace("LOST " + record.key);
  note_lost_record(record.key);
  cluster_.store.damage(record);
}

// Excuses the consequences that docs/decisions/store.md allows.
void Scenario::note_lost_record(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  const std::string& kind = parts.front();
  if (parts.size() < 2) return;
  const auto shown = shown_.find(parts[1]);
  if (kind == "spec") lost_specs_.insert(parts[1]);
  if (kind == "cursor") cluster_.lost_cursors.insert({parts[1], std::stoi(parts[2]), std::stoi(parts[3])});
  if (shown == shown_.end()) return;
  const bool is_newest = kind == "attempt" && std::stoi(parts[2]) >= shown->second.attempts && !shown->second.over;
  if (kind == "job" || is_newest) {
    lost_jobs_.insert(parts[1]);
    lost_folders_.insert(shown->second.dump_folder);
  }
  if (kind == "progress") shown->second.committed = 0;
  // A job's revision is that of its newest record.
  if (kind == "attempt" || kind == "exit" || kind == "progress") shown->second.revision = 0;
}

// Strikes only one machine: the others have to do all the work.
void Scenario::break_permanently(Machine& machine) {
  if (std::exchange(for_good_, true)) return;
  trouble(machine.name(), absl::InfiniteDuration());
  machine.for_good = true;
  switch (random_.between(0, 4)) {
    case 0:
      machine.refuses = true;
      break;
    case 1:
      machine.unkillable = true;
      break;
    case 2:
      machine.hung_storage = true;
      break;
    case 3:  // Everything hangs in the kernel except the thread that beats.
      machine.idle = machine.unkillable = true;
      for (auto& [key, shim] : machine.shims()) {
        for (Machine::Rank& rank : shim.ranks) rank.stuck = true;
      }
      break;
    default:
      machine.crash();
  }
}

// Restores the store while attempts start and end.
void Scenario::plan_restore() {
  const absl::Duration begin = size_.chaos * (0.1 + 0.3 * random_.fraction());
  cluster_.timeline.at(begin, [this] { restore_store(); });
  for (int i = 0; i < 2 * size_.nodes; ++i) {
    cluster_.timeline.at(begin + random_seconds(0, 20), [this] { inject(Fault::kRankKilled, random_node()); });
  }
}

// Restores an older copy or an empty store.
void Scenario::restore_store() {
  if (resting_) return;
  if (backups_.empty()) {
    backups_.emplace_back();
    if (!random_.chance(0.2)) backups_.back() = *store::scan_all(cluster_.store, "");
    return cluster_.timeline.after(random_seconds(2, 30), [this] { restore_store(); });
  }
  restored_ = cluster_.excused_events = true;
  cluster_.crash_controller();
  shown_.clear();
  acknowledged_.clear();  // Nobody waits for lost jobs.
  cancels_.clear();
  deletes_.clear();
  deleted_nodes_.clear();
  cluster_.restore_store(backups_.back());
  cluster_.timeline.after(random_seconds(0.1, 5), [this] { cluster_.start_controller(); });
}

// Reports on ranks of another node.
void Scenario::lie(const std::string& node) {
  for (const auto& [uid, shown] : shown_) {
    if (shown.state != "RUNNING" && shown.state != "CHECKPOINTING") continue;
    const reconcile::JobViewPtr view =
        cluster_.controller == nullptr ? nullptr : cluster_.controller->published().find(uid);
    if (view == nullptr || view->attempts.empty()) continue;
    for (const job::Placement& placement : view->attempts.back()->placements) {
      if (placement.node == node) continue;
      v1::WorkerMessage message;
      v1::AttemptReport& report = *message.mutable_attempt();
      report.mutable_id()->set_job_uid(uid);
      report.mutable_id()->set_number(shown.attempt);
      report.set_phase(shown.used.count(node) > 0 ? v1::AttemptReport::STARTED : v1::AttemptReport::ENDED);
      report.add_exits()->set_rank(placement.first_rank);
      report.mutable_exits(0)->set_exit_code(1);
      return cluster_.send_as(node, message);
    }
  }
}

void Scenario::command_of_earlier_leader(Machine& machine, const node::AttemptKey& running) {
  if (machine.shim(running) == nullptr) return;
  v1::ControllerMessage message;
  message.mutable_stop()->mutable_id()->set_job_uid(running.job_uid);
  message.mutable_stop()->mutable_id()->set_number(running.number);
  message.mutable_stop()->set_reason("EARLIER_LEADER");
  cluster_.command_as_earlier_leader(machine.name(), message);
}

}  // namespace titan::simulation
