#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "common/mesh/mesh.h"
#include "common/models/model_spec.h"

namespace titan::testing {

using Tensors = std::map<std::string, at::Tensor>;

// One forward and backward of the production engine over a whole mesh, as threads of this process: weights (by FQN) are
// sharded, the batch's rows dealt to the data-parallel ranks, and what comes out joined: "logits" and "grad.<FQN>".
Tensors engine_step(const models::ModelSpec& spec, const Tensors& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const mesh::Degrees& degrees, int world);

}  // namespace titan::testing
