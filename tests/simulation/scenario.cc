#include "tests/simulation/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace titan::simulation {
namespace {

constexpr absl::Duration kMaxRest =
    absl::Minutes(15);  // In addition to the remaining work of all jobs, one after the other.
constexpr absl::Duration kMaxToStart = absl::Seconds(10);
constexpr absl::Duration kUnknownUntil = absl::Seconds(60);  // Then the operator ends unknown attempts.
constexpr absl::Duration kUnknownEnds = absl::Seconds(15);

}  // namespace

Size size_of(uint64_t seed) {
  Random random(seed * 31 + 7);
  Size size;
  size.nodes = random.chance(0.02) ? random.between(20, 50) : random.between(3, 7);
  size.devices = random.between(1, 3);
  size.jobs = random.between(1, size.nodes);
  size.chaos = random.between(absl::Seconds(20), absl::Seconds(90));
  size.faults_per_second = 0.03 * size.nodes + 0.1 * random.fraction();
  size.one_bad_node = random.chance(0.05);
  return size;
}

Scenario::Scenario(uint64_t seed, const Size& size)
    : cluster_(seed, size.nodes, size.devices), random_(cluster_.timeline.random), size_(size) {
  cluster_.on_view = [this](const reconcile::JobView& view) { see(view); };
  cluster_.on_start = [this] { controller_started(); };
  cluster_.on_started = [this] {
    for (const auto& [uid, shown] : shown_) {
      if (!shown.over) check_capacity(uid, shown);
    }
  };
  cluster_.on_unanswered = [this](const std::string& node) { check_answers(node); };
  cluster_.on_no_devices = [this](const std::string& node) { check_device_count(node); };
  cluster_.on_line = [this](const journal::Line& line) { check_line(line); };
}

absl::Duration Scenario::random_seconds(double low, double high) {
  return random_.between(absl::Seconds(low), absl::Seconds(high));
}

std::string Scenario::random_node() { return absl::StrCat("n", random_.between(1, size_.nodes)); }

Outcome Scenario::run() {
  plan();
  every_second();
  cluster_.timeline.run_until(size_.chaos);
  if (cluster_.timeline.is_livelocked()) cluster_.violate("events follow each other without progress of time");
  rest();
  const absl::Duration end = size_.chaos + kMaxRest + work_left();
  while (!all_over() && cluster_.timeline.now() < end && cluster_.violations.empty()) {
    cluster_.timeline.run_until(cluster_.timeline.now() + absl::Seconds(1));
    if (cluster_.timeline.is_livelocked()) cluster_.violate("events follow each other without progress of time");
  }
  if (!all_over() && cluster_.violations.empty()) check_all_over();
  outcome_.violations = cluster_.violations;
  outcome_.events = cluster_.timeline.events;
  outcome_.digest = cluster_.digest;
  outcome_.transactions = cluster_.store.kinds;
  outcome_.simulated = cluster_.timeline.now();
  return outcome_;
}

bool Scenario::all_over() const {
  if (cluster_.controller == nullptr || shown_.size() < acknowledged_.size()) return false;
  // Attempts that a restored store does not know continue until the operator ends them.
  if ((restored_ || has_unknown_ranks_) && cluster_.timeline.now() < size_.chaos + kUnknownUntil + kUnknownEnds)
    return false;
  return std::all_of(shown_.begin(), shown_.end(), [](const auto& item) { return item.second.over; });
}

// Returns the remaining training time of unfinished jobs if no two of them fit at the same time.
absl::Duration Scenario::work_left() const {
  absl::Duration sum;
  for (const auto& [uid, shown] : shown_) {
    if (shown.over) continue;
    const JobPlan& plan = cluster_.ranks.plans.at(shown.dump_folder);
    const int64_t steps = plan.steps - shown.committed;
    sum += kMaxToStart + plan.load_time + static_cast<double>(steps) * kSlowestStep * plan.step_time +
           static_cast<double>(steps / plan.save_every + 1) * plan.save_time;
  }
  return sum;
}

void Scenario::plan() {
  for (int i = 1; i <= size_.jobs; ++i) {
    cluster_.timeline.at(random_seconds(0, absl::ToDoubleSeconds(size_.chaos) / 2), [this, i] { submit(i); });
  }
  const auto faults = static_cast<int>(absl::ToDoubleSeconds(size_.chaos) * size_.faults_per_second);
  for (int i = 0; i < faults; ++i) {
    cluster_.timeline.at(random_seconds(1, absl::ToDoubleSeconds(size_.chaos)),
                         [this] { inject(random_fault(), random_node()); });
  }
  if (size_.is_large() || size_.one_bad_node || random_.chance(0.3)) {
    const Fault fault = size_.is_large() ? Fault::kControllerCrash : Fault::kForGood;
    cluster_.timeline.at(size_.chaos * 0.6 * random_.fraction(), [this, fault] { inject(fault, random_node()); });
  }
  if (!size_.is_large() && !size_.one_bad_node && random_.chance(0.1)) plan_restore();
  for (int i = 0; i < size_.jobs; ++i) {
    cluster_.timeline.at(random_seconds(5, absl::ToDoubleSeconds(size_.chaos)), [this] { user_acts(); });
  }
}

void Scenario::submit(int number) {
  if (resting_) return;
  const std::string id = absl::StrCat("j", number);
  if (!cluster_.controller_answers()) {
    return cluster_.timeline.after(absl::Seconds(1), [this, number] { submit(number); });
  }
  const bool is_small = size_.is_large() && number > 2;
  const int max_ranks = is_small ? 16 : std::max(1, (size_.nodes - 2) * size_.devices);
  job::SchedulingSpec spec;
  spec.job_id = id;
  spec.dump_folder = "/dump/" + id;
  spec.ranks_per_node = random_.chance(0.5) ? 1 : 0;
  spec.ranks =
      random_.between(1, spec.ranks_per_node == 1 ? std::min(max_ranks, std::max(1, size_.nodes - 2)) : max_ranks);
  if (size_.is_large() && !is_small) spec.ranks = size_.nodes / 4 * (spec.ranks_per_node == 1 ? 1 : size_.devices);
  spec.priority = random_.between(0, 2);
  if (!size_.one_bad_node) spec.restart.no_progress_limit = 10'000;
  if (!size_.one_bad_node && !size_.is_large() && random_.chance(0.15))
    spec.time_limit_seconds = random_.between(10, 90);
  spec.restart.unreachable_grace_seconds = random_.chance(0.3) ? 60 : random_.between(2, 30);
  spec.restart.backoff_max_seconds = 10;
  spec.restart.orphan_timeout_seconds = 300;
  spec.restart.stop_grace_seconds = 15;
  spec.restart.init_timeout_seconds = random_.between(10, 20);
  spec.restart.train_timeout_seconds = 10;
  JobPlan& plan = cluster_.ranks.plans[spec.dump_folder];
  plan.steps = random_.between(5, 25);
  plan.save_every = random_.between(2, 10);
  plan.step_time = random_seconds(0.3, 4);
  plan.load_time = random_seconds(0.5, 6);
  plan.save_time = random_seconds(0.1, 5);
  if (size_.is_large()) {
    plan.steps = random_.between(3, 6);
    plan.step_time = random_seconds(0.5, 2);
  }
  plan.init_timeout = absl::Seconds(spec.restart.init_timeout_seconds);
  create(spec, id, static_cast<uint32_t>(number));
  calls_.emplace_back([this, spec, id, number] { create(spec, id, static_cast<uint32_t>(number)); });
  // The client may have got no answer: it repeats the request with the same id.
  cluster_.timeline.after(absl::Seconds(3), [this, number, id] {
    if (uids_.count(id) == 0) submit(number);
  });
}

void Scenario::create(const job::SchedulingSpec& spec, const std::string& id, uint32_t fingerprint) {
  v1::JobSpec stored;
  stored.set_config_json("{}");
  core::CreateJob request;
  request.spec = spec;
  request.stored = stored.SerializeAsString();
  request.request_id = "request-" + id;
  request.fingerprint = fingerprint;
  cluster_.controller->create(std::move(request), [this, id](const auto& made) {
    if (made.ok()) created(id, (*made)->record->uid);
  });
}

// One request creates one job, as long as the job is known.
void Scenario::created(const std::string& id, const std::string& uid) {
  const auto known = uids_.find(id);
  if (known != uids_.end() && known->second != uid && acknowledged_.count(known->second) > 0) {
    cluster_.violate(absl::StrCat("job ", known->second, " was created, and the same request creates ", uid));
  }
  acknowledged_.insert(uid);
  uids_[id] = uid;
}

void Scenario::user_acts() {
  if (resting_ || !cluster_.controller_answers() || uids_.empty()) return;
  auto chosen = uids_.begin();
  std::advance(chosen, random_.between(0, static_cast<int>(uids_.size()) - 1));
  const std::string uid = chosen->second;
  cluster_.trace(absl::StrCat("USER acts on ", uid));
  const auto ignore = [](const auto&) {};
  switch (random_.between(0, 7)) {
    case 0:
      return cancel(uid);
    case 1:
      return cluster_.controller->checkpoint(uid, ignore);
    case 2:
    case 3:
      return drain(random_node(), random_seconds(20, 70));
    case 4:
      return remove();
    case 6:
      return delete_lost_node();
    case 5:
      return cluster_.controller->update({{.priority = random_.between(0, 2)}, /*request=*/0, uid}, ignore);
    default:
      return cluster_.controller->profile(uid, {0}, 1, ignore);
  }
}

void Scenario::cancel(const std::string& uid) {
  cluster_.ranks.cancelled.insert(uid);
  calls_.emplace_back([this, uid, now = random_.chance(0.5)] {
    const auto accepted = [this, uid](const auto& done) {
      if (done.ok()) cancels_.insert(uid);
    };
    cluster_.controller->cancel(uid, now, accepted, "somebody", "cancel-" + uid);
  });
  calls_.back()();
  if (!random_.chance(0.2)) return;
  cluster_.timeline.after(random_.between(absl::ZeroDuration(), absl::Milliseconds(6)),
                          [this] { inject(Fault::kControllerCrash, random_node()); });
}

// Deletes the first finished job.
void Scenario::remove() {
  const auto over = std::find_if(shown_.begin(), shown_.end(), [](const auto& item) { return item.second.over; });
  if (over == shown_.end()) return;
  const std::string uid = over->first;
  requested_deletes_.insert(uid);
  cluster_.controller->remove(uid, [this, uid](const auto& done) {
    if (!done.ok()) return;
    deletes_.insert(uid);
    acknowledged_.erase(uid);
  });
}

void Scenario::delete_lost_node() {
  for (const reconcile::NodeView& view : cluster_.controller->nodes()) {
    if (view.node.state != core::NodeState::kLost) continue;
    const std::string& node = view.node.record.name;
    cluster_.trace(absl::StrCat("USER deletes ", node));
    // If the node returns, it is in service again.
    return cluster_.controller->delete_node(node, [this, node](const auto& done) {
      if (done.ok()) drains_.erase(node);
    });
  }
}

// Repeats the request like `titanctl node drain`, until the node is put back into service.
void Scenario::drain(const std::string& node, absl::Duration last) {
  if (size_.one_bad_node) return;  // The other nodes must stay free.
  if (!drains_.emplace(node, cluster_.timeline.now()).second) return;
  cluster_.trace(absl::StrCat("USER drains ", node));
  request_drain(node);
  cluster_.timeline.after(last, [this, node] {
    if (resting_ || drains_.erase(node) == 0 || cluster_.controller == nullptr) return;
    cluster_.controller->cordon(node, false, "", [](const auto&) {});
  });
}

void Scenario::request_drain(const std::string& node) {
  if (drains_.count(node) == 0) return;
  if (cluster_.controller_answers()) cluster_.controller->drain(node, "maintenance", [](const auto&) {});
  cluster_.timeline.after(absl::Seconds(2), [this, node] { request_drain(node); });
}

// Calls `action` after `after`, as soon as the controller answers: clients retry while it is down.
void Scenario::when_it_answers(absl::Duration after, std::function<void()> action) {
  cluster_.timeline.after(after, [this, action = std::move(action)] {
    if (cluster_.controller_answers()) return action();
    when_it_answers(absl::Seconds(1), action);
  });
}

// Repairs everything except permanent faults; the operator puts nodes back into service.
void Scenario::rest() {
  resting_ = true;
  cluster_.store.set_full(false);
  cluster_.ranks.full.clear();
  cluster_.start_controller();
  for (auto& [name, machine] : cluster_.machines) {
    cluster_.links[name].data = true;
    cluster_.links[name].latency = absl::Milliseconds(1);
    cluster_.heal(name);
    if (machine->for_good) continue;
    machine->hung_storage = machine->unkillable = machine->unreadable = machine->slow_disk = machine->disk_full = false;
    machine->remove_torn_record();
    if (std::exchange(machine->idle, false)) machine->kill_daemon();
    if (!machine->up) machine->boot();
    machine->start_daemon();
  }
  // Ranks of jobs that a restored store does not know hold their devices until an operator stops them. Later rounds
  // stop those of which a paused controller learned only meanwhile.
  for (int round = 1; round <= 3; ++round) {
    when_it_answers(round * kUnknownUntil, [this] {
      for (const reconcile::NodeView& view : cluster_.controller->nodes()) {
        for (const auto& [attempt, stray] : view.unknown) {
          cluster_.controller->stop_unknown(view.node.record.name, attempt.first, absl::ZeroDuration(),
                                            [](const auto&) {});
        }
      }
    });
  }
  for (const absl::Duration when : {absl::Seconds(5), absl::Seconds(50)}) {
    when_it_answers(when, [this, when] {
      if (when > absl::Seconds(5)) drains_.clear();
      for (const auto& [name, machine] : cluster_.machines) {
        if (drains_.count(name) == 0) cluster_.controller->cordon(name, false, "", [](const auto&) {});
      }
    });
  }
}

}  // namespace titan::simulation
