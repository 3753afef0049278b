#pragma once

// Says which blocks of a model the stages of a rank have.

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
  std::vector<std::vector<std::string>> stages;  // Names of the blocks of each stage that lives here, in stage order.
  std::vector<int> indices;                      // Of these stages in the whole model.
  int count = 1;                                 // Stages of the whole model.
  bool splits_backward = false;                  // The schedule has input and weight gradients apart.
  int64_t dim = 0;                               // Between stages go activations [B, T / sequence_ranks, dim].
  int64_t sequence_ranks = 1;
  int first_rank = 0;  // Who holds the first and the last stage, as indices on mesh::Axis::kPipeline.
  int last_rank = 0;
};

// What `schedule` and `split` give to the rank with this index on mesh::Axis::kPipeline.
PipelineShare share_of(const pipeline::Schedule& schedule, const pipeline::Split& split, int rank);

// The blocks of each stage that lives here, as indices. Errors: InvalidArgument for a block that the model does not
// have.
absl::StatusOr<std::vector<std::vector<size_t>>> blocks_by_stage(const model::Model& model,
                                                                 const std::optional<PipelineShare>& pipeline);

// Whether the block is one of the model's layers, and not its embedding or its head.
bool is_layer(const nn::Block& block);

}  // namespace titan::runtime
