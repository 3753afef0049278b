#pragma once

// Flux's blocks as the engine takes them, and how they are split over a mesh.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/models/flux.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/nn/block.h"

namespace titan::model::flux {

using Blocks = std::vector<std::unique_ptr<nn::Block>>;

// The family's functions (worker/rank/model/families.h).
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);
HfFamily hf();
std::unique_ptr<Objective> objective(const models::ModelSpec& spec);

// Builds the blocks of models::block_names(). Parameters have shapes and initial distributions (torchtitan's) but no
// values: a fresh model returns zeros, because its last layer and all gates are zero. InvalidArgument names the numbers
// of the spec that do not fit together.
absl::StatusOr<Blocks> build_blocks(const models::FluxSpec& spec);

// Splits blocks that have no values yet over the tensor and context axes of a mesh; what FSDP and the pipeline need is
// nothing. InvalidArgument names what does not divide.
//
// Tensor ranks have different heads and channels of the feed-forwards, and rows of the modulations. The activations
// between blocks, [B, 1 + Tt + Ti, dim], are whole on each (options.sequence_parallel is not read), as are the other
// parameters and their gradients.
//
// A context rank has the shares of context_share(): its activations are the whole vector, its tokens of the text and
// its tokens of the image. The sum over the context ranks' gradients of every parameter, which FSDP computes, is the
// whole gradient: that of the vector's row is a part on each rank.
absl::Status parallelize(const Blocks& blocks, const models::FluxSpec& spec, const ParallelOptions& options);

}  // namespace titan::model::flux
