#include "tests/simulation/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"

namespace titan::simulation {
namespace {

constexpr absl::Duration kMostRest = absl::Minutes(15);

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
    case Fault::kBrokenNode:
      return "broken node";
    case Fault::kUnkillableRanks:
      return "unkillable ranks";
    case Fault::kPoisonEvent:
      return "poison event";
    case Fault::kControllerCrash:
      return "controller crash";
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
    case Fault::kCount:
      break;
  }
  return "none";
}

Size size_of(uint64_t seed) {
  Random random(seed * 31 + 7);
  Size size;
  size.nodes = random.chance(0.02) ? random.between(20, 50) : random.between(3, 7);
  size.devices = random.between(1, 3);
  size.jobs = random.between(1, size.nodes);
  size.chaos = random.between(absl::Seconds(20), absl::Seconds(90));
  size.faults_per_second = 0.02 * size.nodes + 0.1 * random.fraction();
  return size;
}

Scenario::Scenario(uint64_t seed, const Size& size)
    : cluster_(seed, size.nodes, size.devices), random_(cluster_.timeline.random), size_(size) {
  cluster_.on_view = [this](const reconcile::JobView& view) { see(view); };
  cluster_.on_start = [this] { controller_started(); };
}

absl::Duration Scenario::for_a_while(double least, double most) {
  return random_.between(absl::Seconds(least), absl::Seconds(most));
}

std::string Scenario::some_node() { return absl::StrCat("n", random_.between(1, size_.nodes)); }

Outcome Scenario::run() {
  plan();
  cluster_.timeline.run_until(size_.chaos);
  if (cluster_.timeline.in_a_circle()) cluster_.violate("somebody goes in a circle");
  rest();
  while (!all_over() && cluster_.timeline.now() < size_.chaos + kMostRest && cluster_.violations.empty()) {
    cluster_.timeline.run_until(cluster_.timeline.now() + absl::Seconds(1));
    if (cluster_.timeline.in_a_circle()) cluster_.violate("somebody goes in a circle");
  }
  if (!all_over() && cluster_.violations.empty()) {
    for (const auto& [uid, shown] : shown_) {
      if (!shown.over) cluster_.violate(absl::StrCat("job ", uid, " is still ", shown.state, " for ", shown.waits_for));
    }
    for (const std::string& uid : acknowledged_) {
      if (shown_.count(uid) == 0 && !restored_) cluster_.violate(absl::StrCat("job ", uid, " is lost"));
    }
  }
  outcome_.violations = cluster_.violations;
  outcome_.events = cluster_.timeline.events;
  outcome_.simulated = cluster_.timeline.now();
  return outcome_;
}

bool Scenario::all_over() const {
  if (cluster_.controller == nullptr || shown_.size() < acknowledged_.size()) return false;
  return std::all_of(shown_.begin(), shown_.end(), [](const auto& item) { return item.second.over; });
}

void Scenario::plan() {
  for (int i = 1; i <= size_.jobs; ++i) {
    cluster_.timeline.at(for_a_while(0, absl::ToDoubleSeconds(size_.chaos) / 2), [this, i] { submit(i); });
  }
  const auto faults = static_cast<int>(absl::ToDoubleSeconds(size_.chaos) * size_.faults_per_second);
  for (int i = 0; i < faults; ++i) {
    const auto fault = static_cast<Fault>(random_.between(0, static_cast<int>(Fault::kCount) - 1));
    cluster_.timeline.at(for_a_while(1, absl::ToDoubleSeconds(size_.chaos)), [this, fault] { strike(fault); });
  }
  for (int i = 0; i < size_.jobs; ++i) {
    cluster_.timeline.at(for_a_while(5, absl::ToDoubleSeconds(size_.chaos)), [this] { user_acts(); });
  }
}

void Scenario::submit(int number) {
  if (resting_) return;
  const std::string id = absl::StrCat("j", number);
  if (cluster_.controller == nullptr)
    return cluster_.timeline.after(absl::Seconds(1), [this, number] { submit(number); });
  const int most = std::max(1, (size_.nodes - 2) * size_.devices);
  job::Spec spec;
  spec.job_id = id;
  spec.dump_folder = "/dump/" + id;
  spec.ranks_per_node = random_.chance(0.5) ? 1 : 0;
  spec.ranks = random_.between(1, spec.ranks_per_node == 1 ? std::max(1, size_.nodes - 2) : most);
  spec.priority = random_.between(0, 2);
  spec.restart.no_progress_limit = 10'000;
  spec.restart.backoff_max_seconds = 10;
  spec.restart.orphan_timeout_seconds = 300;
  spec.restart.stop_grace_seconds = 10;
  spec.restart.init_timeout_seconds = 20;
  spec.restart.train_timeout_seconds = 10;
  JobPlan& plan = cluster_.ranks.plans[spec.dump_folder];
  plan.steps = random_.between(5, 40);
  plan.save_every = random_.between(2, 10);
  plan.step_time = for_a_while(0.3, 2);
  v1::JobSpec stored;
  stored.set_config_json("{}");
  const auto print = static_cast<uint32_t>(number);
  cluster_.controller->create(spec, stored, "request-" + id, print, [this, id](const auto& made) {
    if (!made.ok()) return;
    acknowledged_.insert((*made)->record->uid);
    uids_[id] = (*made)->record->uid;
  });
  // Nobody may have answered: whoever asks asks again, by the same id.
  cluster_.timeline.after(absl::Seconds(3), [this, number, id] {
    if (uids_.count(id) == 0) submit(number);
  });
}

void Scenario::user_acts() {
  if (resting_ || cluster_.controller == nullptr || uids_.empty()) return;
  auto chosen = uids_.begin();
  std::advance(chosen, random_.between(0, static_cast<int>(uids_.size()) - 1));
  const std::string uid = chosen->second;
  cluster_.trace(absl::StrCat("USER acts on ", uid));
  const auto ignore_job = [](const auto&) {};
  switch (random_.between(0, 4)) {
    case 0:
      cluster_.ranks.cancelled.insert(uid);
      return cluster_.controller->cancel(uid, random_.chance(0.5), ignore_job);
    case 1:
      return cluster_.controller->checkpoint(uid, ignore_job);
    case 2:
    case 3: {
      const std::string node = some_node();
      cluster_.controller->drain(node, "maintenance", [](const auto&) {});
      return cluster_.timeline.after(for_a_while(5, 30), [this, node] {
        if (cluster_.controller != nullptr) cluster_.controller->cordon(node, false, "", [](const auto&) {});
      });
    }
    default:
      return cluster_.controller->profile(uid, {0}, 1, ignore_job);
  }
}

void Scenario::strike(Fault fault) {
  const std::string node = some_node();
  Machine& machine = *cluster_.machines.at(node);
  Link& link = cluster_.links[node];
  const auto later = [this](absl::Duration delay, std::function<void()> what) {
    cluster_.timeline.after(delay, std::move(what));
  };
  node::AttemptKey running;
  for (const auto& [key, shim] : machine.shims()) {
    if (shim.alive && shim.started && !shim.ended) running = key;
  }
  Machine::SimShim* shim = machine.shim(running);
  ++outcome_.faults[fault];
  cluster_.trace(absl::StrCat("FAULT ", name(fault), " at ", node, " of ", running.job_uid, "/", running.number));
  switch (fault) {
    case Fault::kRankKilled:
      if (shim != nullptr) machine.exit_rank(running, shim->ranks.front().rank, -1, 9);
      break;
    case Fault::kRankStuck:
      if (shim != nullptr) shim->ranks.back().stuck = true;
      break;
    case Fault::kShimKilled:
      if (shim != nullptr) machine.kill_shim(running);
      break;
    case Fault::kMachineCrash:
      machine.crash();
      later(for_a_while(2, 40), [&machine] {
        if (!machine.up) machine.boot();
      });
      break;
    case Fault::kDataPartition:
      link.data = false;
      later(for_a_while(1, 40), [&link] { link.data = true; });
      break;
    case Fault::kHungStorage:
      machine.hung_storage = true;
      later(for_a_while(5, 120), [&machine] { machine.hung_storage = false; });
      break;
    case Fault::kBrokenNode:
      if (!broken_.empty()) break;
      broken_.insert(node);
      machine.refuses = true;
      break;
    case Fault::kUnkillableRanks:
      machine.unkillable = true;
      later(for_a_while(5, 90), [&machine] { machine.unkillable = false; });
      break;
    case Fault::kPoisonEvent:
      cluster_.ranks.poison();
      break;
    case Fault::kControllerCrash:
      cluster_.crash_controller();
      later(for_a_while(0.1, 10), [this] { cluster_.start_controller(); });
      break;
    case Fault::kStoreRestored:
      if (!random_.chance(0.2)) break;  // Rare, since much is excused afterwards.
      if (backups_.empty()) {
        backups_.push_back(*store::scan_all(cluster_.store, ""));
        later(for_a_while(2, 20), [this] { strike(Fault::kStoreRestored); });
        break;
      }
      restored_ = true;
      cluster_.ranks.excuse_all();
      cluster_.crash_controller();
      shown_.clear();
      cluster_.restore_store(backups_.back());
      later(for_a_while(0.1, 5), [this] { cluster_.start_controller(); });
      break;
    case Fault::kDiskFull:
      cluster_.store.set_full(true);
      later(for_a_while(1, 40), [this] { cluster_.store.set_full(false); });
      break;
    case Fault::kStreamReset:
      cluster_.reset_stream(node);
      break;
    case Fault::kPartition:
      cluster_.block(node, true, true);
      later(for_a_while(0.5, 40), [this, node] { cluster_.heal(node); });
      break;
    case Fault::kOneWayPartition: {
      const bool inward = random_.chance(0.5);
      cluster_.block(node, inward, !inward);
      later(for_a_while(0.5, 40), [this, node] { cluster_.heal(node); });
      break;
    }
    case Fault::kSlowNetwork:
      link.latency = for_a_while(0.1, 2);
      later(for_a_while(5, 30), [&link] { link.latency = absl::Milliseconds(1); });
      break;
    case Fault::kDaemonCrash:
      machine.kill_daemon();
      later(for_a_while(0.1, 8), [&machine] { machine.start_daemon(); });
      break;
    case Fault::kSlowDisk:
      machine.slow_disk = true;
      later(for_a_while(5, 30), [&machine] { machine.slow_disk = false; });
      break;
    case Fault::kCount:
      break;
  }
}

// Everything is mended but for the broken node, and the operator puts nodes back into service.
void Scenario::rest() {
  resting_ = true;
  cluster_.store.set_full(false);
  cluster_.start_controller();
  for (auto& [name, machine] : cluster_.machines) {
    machine->hung_storage = machine->unkillable = machine->slow_disk = false;
    cluster_.links[name].data = true;
    cluster_.links[name].latency = absl::Milliseconds(1);
    cluster_.heal(name);
    if (!machine->up) machine->boot();
    machine->start_daemon();
  }
  // Ranks of jobs that a restored store has never heard of hold their devices until somebody decides.
  cluster_.timeline.after(absl::Seconds(60), [this] {
    for (const reconcile::NodeView& view : cluster_.controller->nodes()) {
      for (const auto& [attempt, stray] : view.unknown) {
        cluster_.controller->stop_unknown(view.node.record.name, attempt.first, absl::ZeroDuration(),
                                          [](const auto&) {});
      }
    }
  });
  cluster_.timeline.after(absl::Seconds(5), [this] {
    if (cluster_.controller == nullptr) return;
    for (const auto& [name, machine] : cluster_.machines)
      cluster_.controller->cordon(name, false, "", [](const auto&) {});
  });
}

void Scenario::controller_started() {
  for (auto& [uid, shown] : shown_) {
    const reconcile::JobViewPtr view = cluster_.controller->published().find(uid);
    if (view == nullptr) {
      cluster_.violate(absl::StrCat("job ", uid, " was shown and is gone after a restart"));
    } else if (view->revision < shown.revision) {
      cluster_.violate(absl::StrCat("job ", uid, " was shown at revision ", shown.revision, " and is at ",
                                    view->revision, " after a restart"));
    }
  }
  for (const std::string& uid : acknowledged_) {
    if (!restored_ && cluster_.controller->published().find(uid) == nullptr) {
      cluster_.violate(absl::StrCat("job ", uid, " was acknowledged and is gone after a restart"));
    }
  }
}

void Scenario::see(const reconcile::JobView& view) {
  const job::JobRecord& record = *view.record;
  Shown& shown = shown_[record.uid];
  const std::string state(job::name(record.state));
  if (record.intent.stop) cluster_.ranks.cancelled.insert(record.uid);
  if (shown.over && shown.state != state) {
    cluster_.violate(absl::StrCat("job ", record.uid, " was ", shown.state, " and is ", state));
  }
  if (view.revision < shown.revision) cluster_.violate(absl::StrCat("the watch of ", record.uid, " goes back"));
  if (record.state == job::JobState::kFailed && !restored_) {
    cluster_.violate(
        absl::StrCat("job ", record.uid, " failed: ", record.failure_reason, ": ", record.failure_message));
  }
  const int64_t committed = cluster_.storage[record.spec.dump_folder].committed;
  if (view.progress.committed_step > committed) {
    cluster_.violate(
        absl::StrCat("job ", record.uid, " shows checkpoint ", view.progress.committed_step, " of ", committed));
  }
  if (record.state == job::JobState::kSucceeded && committed < cluster_.ranks.plans[record.spec.dump_folder].steps) {
    cluster_.violate(absl::StrCat("job ", record.uid, " succeeded at step ", committed));
  }
  std::map<std::string, int> used;
  for (const auto& attempt : view.attempts) {
    if (attempt->end_time_ns != 0) continue;
    for (const job::Placement& placement : attempt->placements) used[placement.node] += placement.num_ranks;
  }
  for (const auto& [node, ranks] : used) {
    if (ranks > size_.devices) cluster_.violate(absl::StrCat("job ", record.uid, " has ", ranks, " ranks on ", node));
  }
  if (shown.state != state) cluster_.trace(absl::StrCat("  ", record.uid, " is ", state));
  shown.revision = view.revision;
  shown.state = state;
  shown.waits_for = absl::StrCat(view.pending_reason, ": ", view.pending_message);
  shown.over = job::is_final(record.state);
}

}  // namespace titan::simulation
