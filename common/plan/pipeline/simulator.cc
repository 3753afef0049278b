#include "common/plan/pipeline/simulator.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"

namespace titan::pipeline {
namespace {

constexpr double kNotDone = -1;

// Runs all ranks concurrently. Each works through its list in order and starts an action once the actions that it waits
// for have ended.
class Run {
 public:
  Run(const Schedule& schedule, const Costs& costs, const Where& where)
      : schedule_(schedule),
        costs_(costs),
        where_(where),
        forward_end_(static_cast<std::size_t>(schedule.stages) * schedule.microbatches, kNotDone),
        input_end_(forward_end_),
        next_(schedule.ranks),
        free_(schedule.ranks) {
    result_.ranks.resize(schedule.ranks);
  }

  absl::StatusOr<Simulation> run() {
    for (int rank = schedule_.ranks; rank-- > 0;) to_try_.push_back(rank);
    while (!to_try_.empty()) {
      const int rank = to_try_.back();
      to_try_.pop_back();
      while (next_[rank].step < schedule_.steps[rank].size() && advance(rank)) continue;
    }
    if (absl::Status stuck = check_done(); !stuck.ok()) return stuck;
    summarize();
    return std::move(result_);
  }

 private:
  struct Place {
    std::size_t step = 0;
    std::size_t half = 0;       // Index within a paired step.
    double began = 0, end = 0;  // Times of the step's first half.
  };

  std::size_t slot(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * schedule_.microbatches + microbatch;
  }

  // Returns the time at which the result of a neighboring stage arrives; nothing while that stage has not run.
  std::optional<double> arrival(const std::vector<double>& ends, int from, int to, int microbatch) const {
    const double end = ends[slot(from, microbatch)];
    if (end == kNotDone) return std::nullopt;
    return end + (schedule_.rank_of(from) == schedule_.rank_of(to) ? 0 : costs_.transfer);
  }

  // Returns the time at which all inputs of the action are available; nothing while one has no time yet. The caller
  // also waits for earlier work of the rank.
  std::optional<double> ready(const Action& action) const {
    switch (action.work) {
      case ComputationType::kForward:
        if (action.stage == 0) return 0;
        return arrival(forward_end_, action.stage - 1, action.stage, action.microbatch);
      case ComputationType::kBackward:
      case ComputationType::kInputGradient:
        if (action.stage == schedule_.stages - 1) return forward_end_[slot(action.stage, action.microbatch)];
        return arrival(input_end_, action.stage + 1, action.stage, action.microbatch);
      case ComputationType::kWeightGradient:
      case ComputationType::kReduce:
        return 0;
    }
    return std::nullopt;
  }

  // Retries the rank of `stage`, whose next action may have its data now.
  void wake(int stage) {
    if (stage >= 0 && stage < schedule_.stages) to_try_.push_back(schedule_.rank_of(stage));
  }

  // Runs the rank's next action if its data is available, and returns whether it was.
  bool advance(int rank) {
    Place& place = next_[rank];
    const ScheduleStep& step = schedule_.steps[rank][place.step];
    const Action& action = step.actions[place.half];
    const std::optional<double> data = ready(action);
    if (!data.has_value()) return false;
    const double start = std::max(*data, free_[rank]);
    const double end = start + costs_.of(action);
    if (action.work == ComputationType::kForward) {
      forward_end_[slot(action.stage, action.microbatch)] = end;
      wake(action.stage + 1);
    }
    if (action.work == ComputationType::kBackward || action.work == ComputationType::kInputGradient) {
      input_end_[slot(action.stage, action.microbatch)] = end;
      wake(action.stage - 1);
    }
    RankTimeline& timeline = result_.ranks[rank];
    timeline.actions.push_back({action, start, end});
    count_memory(timeline, action);

    const bool first_of_overlapped = costs_.pairs_overlap && step.actions.size() == 2 && place.half == 0;
    if (first_of_overlapped) {  // The second half may start at the same time.
      place.began = start;
      place.end = end;
      place.half = 1;
      return true;
    }
    timeline.busy += end - start;
    free_[rank] = end;
    if (costs_.pairs_overlap && place.half == 1) {
      const double shared = std::max(0.0, std::min(end, place.end) - std::max(start, place.began));
      timeline.busy += place.end - place.began - shared;
      free_[rank] = std::max(end, place.end);
    }
    place = place.half + 1 < step.actions.size() ? Place{place.step, place.half + 1} : Place{place.step + 1};
    return true;
  }

  void count_memory(RankTimeline& timeline, const Action& action) {
    if (schedule_.forward_only) return;
    int& held = held_[action.stage];
    int& all = held_of_rank_[schedule_.rank_of(action.stage)];
    if (action.work == ComputationType::kForward) {
      timeline.peak_by_stage[action.stage] = std::max(timeline.peak_by_stage[action.stage], ++held);
      timeline.peak_activations = std::max(timeline.peak_activations, ++all);
    } else if (action.work == ComputationType::kBackward || action.work == ComputationType::kWeightGradient) {
      --held;
      --all;
    }
  }

  absl::Status check_done() const {
    std::vector<std::string> waiting;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (next_[rank].step == schedule_.steps[rank].size()) continue;
      const Action& action = schedule_.steps[rank][next_[rank].step].actions[next_[rank].half];
      const bool forward = action.work == ComputationType::kForward;
      waiting.push_back(absl::StrCat(where_(rank, next_[rank].step), ": ", to_string(action), " waits for the ",
                                     forward ? "output" : "gradient", " of stage ", action.stage + (forward ? -1 : 1)));
    }
    if (waiting.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks wait for each other forever: ", absl::StrJoin(waiting, "; ")));
  }

  void summarize() {
    double busy = 0;
    for (const double end : free_) result_.makespan = std::max(result_.makespan, end);
    for (RankTimeline& rank : result_.ranks) {
      rank.bubble = result_.makespan > 0 ? 1 - rank.busy / result_.makespan : 0;
      busy += rank.busy;
    }
    if (result_.makespan > 0) result_.bubble = 1 - busy / (result_.makespan * schedule_.ranks);
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const Where& where_;
  std::vector<double> forward_end_, input_end_;  // By stage and microbatch.
  std::vector<Place> next_;
  std::vector<double> free_;  // End of each rank's last work.
  std::vector<int> to_try_;   // Ranks whose next action may have its data. This keeps the total work linear in the
                              // number of actions.
  std::map<int, int> held_, held_of_rank_;
  Simulation result_;
};

}  // namespace

double Costs::of(const Action& action) const {
  const double scale = stage_scale.empty() ? 1 : stage_scale.at(action.stage);
  switch (action.work) {
    case ComputationType::kForward:
      return scale * forward;
    case ComputationType::kBackward:
      return scale * (input_gradient + weight_gradient);
    case ComputationType::kInputGradient:
      return scale * input_gradient;
    case ComputationType::kWeightGradient:
      return scale * weight_gradient;
    case ComputationType::kReduce:
      return reduce;
  }
  return 0;
}

absl::StatusOr<Simulation> simulate(const Schedule& schedule, const Costs& costs, const Where& where) {
  if (absl::Status bad = check(schedule, where); !bad.ok()) return bad;
  if (!costs.stage_scale.empty() && static_cast<int>(costs.stage_scale.size()) != schedule.stages) {
    return absl::InvalidArgumentError(
        absl::StrCat(counted(costs.stage_scale.size(), "stage scale"), " for ", counted(schedule.stages, "stage")));
  }
  return Run(schedule, costs, where).run();
}

std::vector<HeldActivations> held_over_time(const RankTimeline& rank, const std::vector<std::int64_t>& stage_bytes) {
  std::vector<HeldActivations> changes;  // Changes at a time, not sums yet.
  for (const TimedAction& timed : rank.actions) {
    const std::int64_t bytes = stage_bytes.empty() ? 0 : stage_bytes.at(timed.action.stage);
    if (timed.action.work == ComputationType::kForward) changes.push_back({timed.start, 1, bytes});
    if (timed.action.work == ComputationType::kBackward || timed.action.work == ComputationType::kWeightGradient)
      changes.push_back({timed.end, -1, -bytes});
  }
  // At equal times, releases come before new activations.
  std::stable_sort(changes.begin(), changes.end(), [](const HeldActivations& a, const HeldActivations& b) {
    return std::tie(a.time, a.activations) < std::tie(b.time, b.activations);
  });
  std::vector<HeldActivations> held;
  HeldActivations now;
  for (const HeldActivations& change : changes) {
    now = {change.time, now.activations + change.activations, now.bytes + change.bytes};
    if (!held.empty() && held.back().time == now.time) {
      held.back() = now;
    } else {
      held.push_back(now);
    }
  }
  return held;
}

HeldActivations peak_held(const std::vector<HeldActivations>& held) {
  HeldActivations most;
  for (const HeldActivations& now : held) {
    if (std::tie(now.bytes, now.activations) > std::tie(most.bytes, most.activations)) most = now;
  }
  return most;
}

}  // namespace titan::pipeline
