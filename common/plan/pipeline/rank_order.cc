#include "common/plan/pipeline/rank_order.h"

#include <algorithm>

namespace titan::pipeline {

Action RankScheduleBuilder::next(int stage, ComputationType work) {
  const int microbatch = work == ComputationType::kForward ? forwards_[stage]++ : backwards_[stage]++;
  if (work == ComputationType::kInputGradient)
    waiting_.push_back({stage, ComputationType::kWeightGradient, microbatch});
  return {stage, work, microbatch};
}

void RankScheduleBuilder::weight_gradient(int stage) {
  const auto oldest =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Action& action) { return action.stage == stage; });
  if (oldest == waiting_.end()) return;
  add({*oldest});
  waiting_.erase(oldest);
}

void RankScheduleBuilder::all_weight_gradients(int stage) {
  const auto waits = [&](const Action& action) { return action.stage == stage; };
  while (std::any_of(waiting_.begin(), waiting_.end(), waits)) weight_gradient(stage);
}

std::vector<ScheduleStep> RankScheduleBuilder::finish(int microbatches) const {
  std::vector<ScheduleStep> kept;
  for (ScheduleStep step : steps_) {
    std::erase_if(step.actions, [&](const Action& action) { return action.microbatch >= microbatches; });
    if (!step.actions.empty()) kept.push_back(std::move(step));
  }
  return with_reductions(std::move(kept));
}

InterleavedOrder::InterleavedOrder(const Schedule& shape, int rank) : hops_(shape.ranks - 1 - rank) {
  const std::vector<int> own = shape.stages_of(rank);
  stages_per_rank_ = static_cast<int>(own.size());
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  for (int round = 0; round < rounds; ++round) {
    const int length = shape.microbatches / rounds + (round < shape.microbatches % rounds ? 1 : 0);
    if (round == 0) first_round_ = length;
    for (const int stage : own) forward_.insert(forward_.end(), length, stage);
    for (auto stage = own.rbegin(); stage != own.rend(); ++stage) backward_.insert(backward_.end(), length, *stage);
  }
}

int InterleavedOrder::ahead(int per_hop) const {
  return std::min((stages_per_rank_ - 1) * first_round_ + per_hop * hops_, size());
}

}  // namespace titan::pipeline
