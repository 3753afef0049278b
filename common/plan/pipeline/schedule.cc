#include "common/plan/pipeline/schedule.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"

namespace titan::pipeline {

char letter(ComputationType work) {
  switch (work) {
    case ComputationType::kForward:
      return 'F';
    case ComputationType::kBackward:
      return 'B';
    case ComputationType::kInputGradient:
      return 'I';
    case ComputationType::kWeightGradient:
      return 'W';
    case ComputationType::kReduce:
      return 'R';
  }
  return '?';
}

std::string to_string(const Action& action) {
  std::string text = absl::StrCat(action.stage, std::string(1, letter(action.work)));
  if (action.work != ComputationType::kReduce) absl::StrAppend(&text, action.microbatch);
  return text;
}

int Schedule::rank_of(int stage) const {
  const int lap = stage / ranks;
  const int place = stage % ranks;
  return placement == StagePlacement::kV && lap % 2 == 1 ? ranks - 1 - place : place;
}

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> own;
  for (int stage = 0; stage < stages; ++stage) {
    if (rank_of(stage) == rank) own.push_back(stage);
  }
  return own;
}

std::vector<ScheduleStep> with_reductions(std::vector<ScheduleStep> steps) {
  const auto completes_weights = [](const Action& action) {
    return action.work == ComputationType::kBackward || action.work == ComputationType::kWeightGradient;
  };
  std::map<int, int> left;  // Weight gradients still to come, by stage.
  for (const ScheduleStep& step : steps) {
    for (const Action& action : step.actions) left[action.stage] += completes_weights(action) ? 1 : 0;
  }
  std::vector<ScheduleStep> out;
  for (ScheduleStep& step : steps) {
    std::vector<ScheduleStep> reductions;
    for (const Action& action : step.actions) {
      if (completes_weights(action) && --left[action.stage] == 0)
        reductions.push_back({{Action{action.stage, ComputationType::kReduce, -1}}});
    }
    out.push_back(std::move(step));
    out.insert(out.end(), reductions.begin(), reductions.end());
  }
  return out;
}

namespace {

// Checks one rank's list in order.
class RankChecker {
 public:
  RankChecker(const Schedule& schedule, int rank, const Where& where)
      : schedule_(schedule), rank_(rank), where_(where) {}

  absl::Status check() {
    for (step_ = 0; step_ < schedule_.steps[rank_].size(); ++step_) {
      if (absl::Status bad = check_step(schedule_.steps[rank_][step_]); !bad.ok()) return bad;
    }
    if (absl::Status bad = check_complete(); !bad.ok()) return bad;
    return early_reduction_;  // Reported last, since missing work explains the error better.
  }

 private:
  using Done = std::set<std::pair<int, int>>;  // Stage and microbatch.

  absl::Status check_step(const ScheduleStep& step) {
    if (step.actions.empty() || step.actions.size() > 2) {
      return absl::InvalidArgumentError(absl::StrCat(where_(rank_, step_), ": has ", step.actions.size(),
                                                     " actions: a step is one, or a forward and a backward"));
    }
    if (step.actions.size() == 2) {
      const ComputationType first = step.actions[0].work, second = step.actions[1].work;
      if (first != ComputationType::kForward ||
          (second != ComputationType::kBackward && second != ComputationType::kInputGradient))
        return wrong(step.actions[1],
                     "cannot run together with " + to_string(step.actions[0]) + ": a pair is F and B, or F and I");
    }
    for (const Action& action : step.actions) {
      if (absl::Status bad = check_action(action); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  absl::Status check_action(const Action& action) {
    if (action.stage < 0 || action.stage >= schedule_.stages)
      return wrong(action, absl::StrCat("names a stage that is not one of 0 to ", schedule_.stages - 1));
    if (const int owner = schedule_.rank_of(action.stage); owner != rank_)
      return wrong(action, absl::StrCat("works on a stage that rank ", owner, " owns"));
    if (action.work == ComputationType::kReduce) return check_reduce(action);
    if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches)
      return wrong(action, absl::StrCat("names a microbatch that is not one of 0 to ", schedule_.microbatches - 1));
    if (schedule_.forward_only && action.work != ComputationType::kForward)
      return wrong(action, "computes gradients in a schedule of forward passes");
    return check_order(action, {action.stage, action.microbatch});
  }

  absl::Status check_order(const Action& action, const std::pair<int, int>& what) {
    const auto once = [&](Done& done) {
      return done.insert(what).second ? absl::OkStatus() : wrong(action, "comes twice");
    };
    switch (action.work) {
      case ComputationType::kForward:
        return once(forwards_);
      case ComputationType::kBackward:
      case ComputationType::kInputGradient:
        if (forwards_.count(what) == 0) return wrong(action, "comes before its forward pass");
        if (action.work == ComputationType::kBackward) weights_.insert(what);
        return once(inputs_);
      case ComputationType::kWeightGradient:
        if (inputs_.count(what) == 0) return wrong(action, "comes before its input gradient (I)");
        return once(weights_);
      case ComputationType::kReduce:
        break;
    }
    return absl::OkStatus();
  }

  absl::Status check_reduce(const Action& action) {
    for (int microbatch = 0; microbatch < schedule_.microbatches && early_reduction_.ok(); ++microbatch) {
      if (weights_.count({action.stage, microbatch}) == 0)
        early_reduction_ = wrong(action, absl::StrCat("comes before the weight gradient of microbatch ", microbatch));
    }
    return reduced_.insert(action.stage).second ? absl::OkStatus() : wrong(action, "comes twice");
  }

  absl::Status check_complete() const {
    for (const int stage : schedule_.stages_of(rank_)) {
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        const std::pair<int, int> what{stage, microbatch};
        const char* lacks = forwards_.count(what) == 0  ? "forward pass"
                            : schedule_.forward_only    ? ""
                            : inputs_.count(what) == 0  ? "backward pass"
                            : weights_.count(what) == 0 ? "weight gradient"
                                                        : "";
        if (*lacks != '\0') {
          return absl::InvalidArgumentError(
              absl::StrCat(where_(rank_, {}), " has no ", lacks, " of stage ", stage, " for microbatch ", microbatch));
        }
      }
      if (!schedule_.forward_only && reduced_.count(stage) == 0)
        return absl::InvalidArgumentError(absl::StrCat(where_(rank_, {}), " never reduces stage ", stage));
    }
    return absl::OkStatus();
  }

  absl::Status wrong(const Action& action, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(where_(rank_, step_), ": ", to_string(action), " ", what));
  }

  const Schedule& schedule_;
  const int rank_;
  const Where& where_;
  std::size_t step_ = 0;
  Done forwards_, inputs_, weights_;
  std::set<int> reduced_;
  absl::Status early_reduction_;
};

}  // namespace

std::string rank_and_step(int rank, std::optional<std::size_t> step) {
  return step ? absl::StrCat("rank ", rank, ", step ", *step) : absl::StrCat("rank ", rank);
}

absl::Status check(const Schedule& schedule, const Where& where) {
  if (schedule.ranks < 1 || schedule.stages < schedule.ranks || schedule.stages % schedule.ranks != 0 ||
      schedule.microbatches < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        counted(schedule.stages, "stage"), " on ", counted(schedule.ranks, "rank"), " with ",
        counted(schedule.microbatches, "microbatch", "microbatches"), ": each rank needs the same number of stages"));
  }
  if (static_cast<int>(schedule.steps.size()) != schedule.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("has lists for ", counted(schedule.steps.size(), "rank"), " instead of ", schedule.ranks));
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    if (absl::Status bad = RankChecker(schedule, rank, where).check(); !bad.ok()) return bad;
  }
  return absl::OkStatus();
}

}  // namespace titan::pipeline
