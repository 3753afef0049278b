#pragma once

// Selects the blocks of a model for each stage of a rank.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/plan.h"
#include "common/plan/pipeline/schedule.h"
#include "worker/rank/model/model.h"

namespace titan::runtime {

// This rank's share of a pipeline.
struct PipelineShare {
  std::vector<std::vector<std::string>> stages;  // Names of the blocks of each local stage, in stage order.
  std::vector<int> indices;                      // Indices of these stages in the whole model.
  int count = 1;                                 // Number of stages of the whole model.
  bool splits_backward = false;                  // The schedule computes input and weight gradients separately.
  int64_t dim = 0;                               // Activations between stages are [B, T / sequence_ranks, dim].
  int64_t sequence_ranks = 1;
  int first_rank = 0;  // Ranks of the first and the last stage, as indices on mesh::Axis::kPipeline.
  int last_rank = 0;
};

// Returns the share of the rank with this index on mesh::Axis::kPipeline.
PipelineShare share_of(const pipeline::Schedule& schedule, const pipeline::Split& split, int rank);

// Returns the block indices of each local stage. InvalidArgument: the model does not have a named block.
absl::StatusOr<std::vector<std::vector<size_t>>> blocks_by_stage(const model::Model& model,
                                                                 const std::optional<PipelineShare>& pipeline);

}  // namespace titan::runtime
