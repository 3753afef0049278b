#include "common/plan/pipeline/schedule.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace titan::pipeline {

char letter(Work work) {
  switch (work) {
    case Work::kForward:
      return 'F';
    case Work::kBackward:
      return 'B';
    case Work::kInputGradient:
      return 'I';
    case Work::kWeightGradient:
      return 'W';
    case Work::kReduce:
      return 'R';
  }
  return '?';
}

std::string to_string(const Action& action) {
  std::string text = absl::StrCat(action.stage, std::string(1, letter(action.work)));
  if (action.work != Work::kReduce) absl::StrAppend(&text, action.microbatch);
  return text;
}

int Schedule::rank_of(int stage) const {
  const int lap = stage / ranks;
  const int place = stage % ranks;
  return placement == Placement::kV && lap % 2 == 1 ? ranks - 1 - place : place;
}

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> own;
  for (int stage = 0; stage < stages; ++stage) {
    if (rank_of(stage) == rank) own.push_back(stage);
  }
  return own;
}

std::vector<Step> with_reductions(std::vector<Step> steps) {
  const auto completes_weights = [](const Action& action) {
    return action.work == Work::kBackward || action.work == Work::kWeightGradient;
  };
  std::map<int, int> left;  // Weight gradients still to come, by stage.
  for (const Step& step : steps) {
    for (const Action& action : step.actions) left[action.stage] += completes_weights(action) ? 1 : 0;
  }
  std::vector<Step> out;
  for (Step& step : steps) {
    std::vector<Step> reductions;
    for (const Action& action : step.actions) {
      if (completes_weights(action) && --left[action.stage] == 0)
        reductions.push_back({{Action{action.stage, Work::kReduce, -1}}});
    }
    out.push_back(std::move(step));
    out.insert(out.end(), reductions.begin(), reductions.end());
  }
  return out;
}

}  // namespace titan::pipeline
