#include "worker/rank/runtime/engine/stage_blocks.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace titan::runtime {

PipelineShare share_of(const pipeline::Schedule& schedule, const pipeline::Split& split, int rank) {
  PipelineShare share;
  share.indices = schedule.stages_of(rank);
  for (const int index : share.indices) share.stages.push_back(split[static_cast<size_t>(index)]);
  share.count = schedule.stages;
  share.first_rank = schedule.rank_of(0);
  share.last_rank = schedule.rank_of(schedule.stages - 1);
  for (const pipeline::ScheduleStep& step : schedule.steps[static_cast<size_t>(rank)]) {
    for (const pipeline::Action& action : step.actions) {
      share.splits_backward |= action.work == pipeline::ComputationType::kInputGradient;
    }
  }
  return share;
}

absl::StatusOr<std::vector<std::vector<size_t>>> blocks_by_stage(const model::Model& model,
                                                                 const std::optional<PipelineShare>& pipeline) {
  std::vector<std::vector<size_t>> stages;
  if (!pipeline) {
    stages.emplace_back(model.blocks.size());
    std::iota(stages[0].begin(), stages[0].end(), size_t{0});
    return stages;
  }
  for (const std::vector<std::string>& names : pipeline->stages) {
    std::vector<size_t>& stage = stages.emplace_back();
    for (const std::string& name : names) {
      const auto found = std::find_if(model.blocks.begin(), model.blocks.end(),
                                      [&](const auto& block) { return block->name() == name; });
      if (found == model.blocks.end()) {
        return absl::InvalidArgumentError(absl::StrCat("parallelism: the model has no block \"", name, "\""));
      }
      stage.push_back(static_cast<size_t>(found - model.blocks.begin()));
    }
  }
  return stages;
}

}  // namespace titan::runtime
