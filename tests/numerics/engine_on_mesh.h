#pragma once

#include <ATen/ATen.h>

#include "common/plan/mesh/mesh.h"
#include "common/plan/models/model_spec.h"
#include "tests/numerics/golden_case.h"

namespace titan::testing {

// Runs one forward and backward of the production engine over a whole mesh, as threads of this process: weights (by
// FQN, whole) are sharded, and the rows of `tokens` and `labels` [B, T] are dealt to the data-parallel ranks. Returns
// the joined results: "logits" [B, T, vocabulary] and "grad.<FQN>" with the shape of the parameter. `buffers`: values
// of saved buffers that replace those of a new training.
Tensors engine_step(const models::ModelSpec& spec, const Tensors& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const mesh::Degrees& degrees, int world, const Tensors& buffers = {});

}  // namespace titan::testing
