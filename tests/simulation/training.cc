#include "tests/simulation/training.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/name_list.h"
#include "nlohmann/json.hpp"

namespace titan::simulation {
namespace {

constexpr size_t kAnyNumber = 1'000'000;
constexpr absl::Duration kTrainTimeout = absl::Seconds(20);

std::vector<v1::Placement> placements_of(const std::vector<v1::NodeRow>& rows) {
  std::vector<v1::Placement> placements;
  int ranks = 0;
  for (const v1::NodeRow& row : rows) {
    const auto names = rank_protocol::unfold_names(row.names(), kAnyNumber);
    for (const std::string& name : names.value()) {
      v1::Placement& placement = placements.emplace_back();
      placement.set_node(name);
      placement.set_first_rank(ranks);
      placement.set_num_ranks(row.ranks());
      ranks += row.ranks();
    }
  }
  return placements;
}

}  // namespace

template <typename Do>
void SimTraining::for_each_rank(const Run& run, Do&& what) const {
  for (const v1::Placement& placement : run.placements) {
    Machine& target = machine(placement.node());
    for (int i = 0; i < placement.num_ranks(); ++i) what(target, placement.first_rank() + i);
  }
}

void SimTraining::started(Machine& target, const node::AttemptKey& key) {
  Run& run = runs_[key];
  if (run.placements.empty()) run.placements = placements_of(*target.facts(key).nodes);
  run.folder = target.record(key).dump_folder;
  run.nodes.insert(target.name());
  if (run.nodes.size() == 1) {
    timeline_.after(plans[run.folder].init_timeout, [this, key] {
      if (!runs_[key].begun) peers_leave(key);
    });
  }
  if (run.nodes.size() < run.placements.size() || run.begun) return;
  for_each_rank(run, [&](Machine& where, int number) {
    if (Machine::Rank* rank = where.rank(key, number)) rank->phase = "load";
  });
  timeline_.after(timeline_.random.between(absl::Milliseconds(200), plans[run.folder].load_time),
                  [this, key] { begin(key); });
}

bool SimTraining::all_run(const Run& run, const node::AttemptKey& key) const {
  bool all = true;
  for_each_rank(run, [&](Machine& target, int number) {
    const Machine::Rank* rank = target.rank(key, number);
    all = all && rank != nullptr && rank->running;
  });
  return all;
}

bool SimTraining::any_stuck(const Run& run, const node::AttemptKey& key) const {
  bool any = false;
  for_each_rank(run, [&](Machine& target, int number) {
    const Machine::Rank* rank = target.rank(key, number);
    any = any || (rank != nullptr && rank->stuck);
    any = any || (run.placements.size() > 1 && !reachable(target.name()));
  });
  return any;
}

bool SimTraining::any_waits_for_storage(const Run& run) const {
  return std::any_of(run.placements.begin(), run.placements.end(),
                     [this](const v1::Placement& placement) { return machine(placement.node()).hung_storage; });
}

bool SimTraining::is_blocked(Run& run, const node::AttemptKey& key) {
  const bool was_blocked = std::exchange(run.blocked, any_stuck(run, key));
  if (was_blocked && !run.blocked) run.unblocked_at = timeline_.now();
  return run.blocked;
}

void SimTraining::write_event(const Run& run, const node::AttemptKey& key, const std::string& json) {
  machine(run.placements.front().node()).write_event(key, 0, json);
}

// Returns whether a holder of the folder lives: a holder beats as long as its rank 0 runs. The beats that this model
// leaves out are made up for here.
bool SimTraining::has_living_holder(const Run& run) {
  for (const auto& [key, other] : runs_) {
    if (other.folder != run.folder || !other.begun) continue;
    const Machine::Rank* leader = machine(other.placements.front().node()).rank(key, 0);
    if (leader == nullptr || !leader->running) continue;
    if (fence_of(run).beat(key.job_uid, key.number).ok()) return true;
  }
  return false;
}

absl::Status SimTraining::take_folder(Run& run, const node::AttemptKey& key) {
  has_living_holder(run);
  const storage::Fence::Claim claim = {.job_uid = key.job_uid,
                                       .attempt = key.number,
                                       .job = key.job_uid,
                                       .host = run.placements.front().node(),
                                       .process = "of the simulation"};
  const absl::Status taken = fence_of(run).raise(claim).status();
  if (!taken.ok()) return taken;
  std::vector<node::AttemptKey>& all = storage_[run.folder].taken;
  if (std::find(all.begin(), all.end(), key) != all.end())
    violated(absl::StrCat("attempt ", key.number, " of ", key.job_uid, " trains for a second time"));
  all.push_back(key);
  return taken;
}

absl::Status SimTraining::publish_step(Run& run, const node::AttemptKey& key) {
  return fence_of(run).publish_step(key.job_uid, key.number, "checkpoint", run.step, [&] {
    note_published(storage_[run.folder], key, run.step);
    return absl::OkStatus();
  });
}

// An earlier holder of the folder publishes nothing more, whatever the fence permits.
void SimTraining::note_published(DumpFolder& folder, const node::AttemptKey& key, int64_t step) {
  const node::AttemptKey& newest = folder.taken.back();
  if (newest != key) {
    violated(absl::StrCat("attempt ", key.number, " of ", key.job_uid, " publishes step ", step, " after attempt ",
                          newest.number, " of ", newest.job_uid, " has taken the folder"));
  }
  if (!folder.published.empty()) {
    const DumpFolder::Published& last = folder.published.back();
    if (last.by.job_uid == key.job_uid && last.by.number > key.number) {
      violated(absl::StrCat("attempt ", key.number, " of ", key.job_uid, " publishes after attempt ", last.by.number));
    }
    if (last.step > step) violated(absl::StrCat("checkpoints of ", key.job_uid, " go back to ", step));
  }
  folder.committed = step;
  folder.published.push_back({key, step});
}

void SimTraining::leave_fenced(Run& run, const node::AttemptKey& key, const absl::Status& why) {
  const storage::Fence::Holder holder = fence_of(run).holder().value_or(storage::Fence::Holder());
  const nlohmann::json details = {{"kind", "error"},
                                  {"class", "fenced"},
                                  {"reason", storage::is_in_use(why) ? "DUMP_FOLDER_IN_USE" : "FENCED"},
                                  {"message", why.message()},
                                  {"same_job", holder.job_uid == key.job_uid},
                                  {"holder_job", holder.job},
                                  {"holder_attempt", holder.attempt}};
  write_event(run, key, details.dump());
  run.over = true;
  machine(run.placements.front().node()).exit_rank(key, 0, rank_protocol::kExitFenced, 0);
}

void SimTraining::begin(const node::AttemptKey& key) {
  Run& run = runs_[key];
  if (run.over || run.begun || !all_run(run, key)) return;
  if (any_waits_for_storage(run)) return timeline_.after(absl::Seconds(1), [this, key] { begin(key); });
  const absl::Status taken = take_folder(run, key);
  // Takes the folder of a silent holder after some time.
  if (storage::is_in_use(taken) && !has_living_holder(run)) {
    return timeline_.after(absl::Seconds(1), [this, key] { begin(key); });
  }
  run.begun = true;
  if (!taken.ok()) return leave_fenced(run, key, taken);
  run.step = storage_[run.folder].committed;
  run.advanced_at = timeline_.now();
  for_each_rank(run, [&](Machine& target, int number) {
    Machine::Rank& rank = *target.rank(key, number);
    rank.phase = "train";
    rank.step = run.step;
    ++rank.counter;
  });
  write_event(run, key, absl::StrCat(R"({"kind":"loaded","source":"checkpoint","step":)", run.step, "}"));
  next_step(key);
}

void SimTraining::next_step(const node::AttemptKey& key) {
  const JobPlan& plan = plans[runs_[key].folder];
  timeline_.after(plan.step_time * (kQuickestStep + (kSlowestStep - kQuickestStep) * timeline_.random.fraction()),
                  [this, key] { step(key); });
}

void SimTraining::step(const node::AttemptKey& key) {
  Run& run = runs_[key];
  if (run.over) return;
  if (!all_run(run, key)) return peers_leave(key);
  if (is_blocked(run, key)) {
    if (timeline_.now() - run.advanced_at > kTrainTimeout) return peers_leave(key);
    return next_step(key);
  }
  const JobPlan& plan = plans[run.folder];
  if (run.step < plan.steps) ++run.step;
  run.advanced_at = timeline_.now();
  for_each_rank(run, [&](Machine& target, int number) {
    Machine::Rank& rank = *target.rank(key, number);
    rank.step = run.step;
    ++rank.counter;
  });
  write_event(
      run, key,
      absl::StrCat(R"({"kind":"step","step":)", run.step, R"(,"metrics":{"loss_metrics/global_avg_loss":2.5}})"));
  const bool saves = run.step % plan.save_every == 0 || run.step >= plan.steps || run.save || run.leave;
  if (!saves) return next_step(key);
  for_each_rank(run, [&](Machine& target, int number) { target.rank(key, number)->phase = "checkpoint"; });
  timeline_.after(timeline_.random.between(absl::Milliseconds(50), plan.save_time), [this, key] { publish(key); });
}

void SimTraining::publish(const node::AttemptKey& key) {
  Run& run = runs_[key];
  if (run.over) return;
  if (!all_run(run, key)) return peers_leave(key);
  if (is_blocked(run, key)) {
    if (timeline_.now() - run.advanced_at > kTrainTimeout) return peers_leave(key);
    return timeline_.after(absl::Seconds(1), [this, key] { publish(key); });
  }
  if (full.count(run.folder) > 0) return fail_to_save(run, key);
  if (const absl::Status done = publish_step(run, key); !done.ok()) return leave_fenced(run, key, done);
  resume(run, key);
  write_event(run, key,
              absl::StrCat(R"({"kind":"checkpoint_committed","step":)", run.step, R"(,"full":true,"seconds":0.1})"));
  if (run.step >= plans[run.folder].steps) {
    write_event(run, key, absl::StrCat(R"({"kind":"finished","step":)", run.step, "}"));
    return all_leave(key, rank_protocol::kExitFinished);
  }
  if (run.leave) {
    write_event(run, key, absl::StrCat(R"({"kind":"stopped","step":)", run.step, "}"));
    return all_leave(key, rank_protocol::kExitStopped);
  }
  next_step(key);
}

void SimTraining::resume(Run& run, const node::AttemptKey& key) {
  run.save = false;
  run.advanced_at = timeline_.now();
  for_each_rank(run, [&](Machine& target, int number) {
    Machine::Rank& rank = *target.rank(key, number);
    rank.phase = "train";
    ++rank.counter;
  });
}

// A failed save ends the attempt only if no other save follows: at the last step, or if the ranks are to leave.
void SimTraining::fail_to_save(Run& run, const node::AttemptKey& key) {
  write_event(run, key,
              absl::StrCat(R"({"kind":"checkpoint_failed","step":)", run.step, R"(,"reason":"no space left"})"));
  resume(run, key);
  if (run.step < plans[run.folder].steps && !run.leave) return next_step(key);
  write_event(run, key, R"({"kind":"error","class":"infra","reason":"CHECKPOINT","message":"no space left"})");
  all_leave(key, rank_protocol::kExitStorage);
}

void SimTraining::all_leave(const node::AttemptKey& key, int code) {
  Run& run = runs_[key];
  run.over = true;
  if (code != rank_protocol::kExitStorage) (void)fence_of(run).release(key.job_uid, key.number);
  for_each_rank(run, [&](Machine& target, int number) {
    timeline_.after(timeline_.random.between(absl::ZeroDuration(), absl::Milliseconds(300)),
                    [&target, key, number, code] { target.exit_rank(key, number, code, 0); });
  });
}

void SimTraining::peers_leave(const node::AttemptKey& key) {
  Run& run = runs_[key];
  run.over = true;
  for_each_rank(run, [&](Machine& target, int number) {
    timeline_.after(timeline_.random.between(absl::Milliseconds(50), absl::Seconds(1)), [this, &target, key, number] {
      const Machine::Rank* rank = target.rank(key, number);
      if (rank != nullptr && !rank->stuck) target.exit_rank(key, number, rank_protocol::kExitPeerLost, 0);
    });
  });
}

void SimTraining::on_save_requested(const node::AttemptKey& key, bool leave) {
  Run& run = runs_[key];
  run.save = true;
  run.leave = run.leave || leave;
}

void SimTraining::on_rank_exit(const node::AttemptKey& key, const std::string&) {
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.over || std::exchange(it->second.lost_rank, true)) return;
  timeline_.after(absl::Milliseconds(300), [this, key] {
    if (!runs_[key].over) peers_leave(key);
  });
}

void SimTraining::killed(const node::AttemptKey& key, const std::string& reason) {
  const auto it = runs_.find(key);
  if (it == runs_.end() || cancelled.count(key.job_uid) > 0 || abandoned.count(key) > 0 ||
      reason == "STOPPED_BY_OPERATOR")
    return;
  if (is_healthy(key) && !may_be_outdated())
    violated(absl::StrCat("healthy attempt ", key.number, " of ", key.job_uid, " was killed: ", reason));
}

std::optional<absl::Duration> SimTraining::last_advance(const node::AttemptKey& key) const {
  const auto it = runs_.find(key);
  if (it == runs_.end() || !it->second.begun) return std::nullopt;
  return it->second.advanced_at;
}

bool SimTraining::is_healthy(const node::AttemptKey& key) const {
  const auto it = runs_.find(key);
  if (it == runs_.end()) return false;
  const Run& run = it->second;
  // An attempt that waited until just now shows progress with its next step.
  const absl::Duration max_age = run.blocked ? absl::Seconds(3) : absl::Seconds(12);
  // That step is reported with the next beat.
  const bool is_seen =
      run.unblocked_at == absl::ZeroDuration() || timeline_.now() - run.unblocked_at > absl::Seconds(2);
  return is_seen && run.begun && !run.over && !run.lost_rank && all_run(run, key) && !any_stuck(run, key) &&
         timeline_.now() - run.advanced_at < max_age;
}

void SimTraining::poison() {
  static const char* const kLines[] = {
      "\xff\xfe not text",
      "[1, 2, 3]",
      R"({"kind":17,"step":"x"})",
      R"({"kind":"step","step":-9,"metrics":[1]})",
      R"({"kind":"step","step":1e300,"metrics":{"grad_norm":"nan"}})",
      R"({"kind":"error","holder_attempt":"many","same_job":3})",
      R"({"kind":"checkpoint_committed","step":null,"full":"yes"})",
      R"({"kind":"unheard_of"})",
  };
  std::vector<node::AttemptKey> keys;
  for (const auto& [key, run] : runs_) {
    if (run.begun && !run.over) keys.push_back(key);
  }
  if (keys.empty()) return;
  const node::AttemptKey& key =
      keys[static_cast<size_t>(timeline_.random.between(0, static_cast<int>(keys.size()) - 1))];
  write_event(runs_[key], key, kLines[timeline_.random.between(0, static_cast<int>(std::size(kLines)) - 1)]);
}

}  // namespace titan::simulation
