#pragma once

#include <ATen/ATen.h>

#include "common/plan/mesh/mesh.h"
#include "common/plan/models/model_spec.h"
#include "tests/numerics/golden_case.h"

namespace titan::testing {

// One forward and backward of the production engine over a whole mesh, as threads of this process: weights (by FQN) are
// sharded, the batch's rows dealt to the data-parallel ranks, and what comes out joined: "logits" and "grad.<FQN>".
// `buffers`: values of the saved buffers that are not as training starts with them.
Tensors engine_step(const models::ModelSpec& spec, const Tensors& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const mesh::Degrees& degrees, int world, const Tensors& buffers = {});

}  // namespace titan::testing
