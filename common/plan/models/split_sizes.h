#pragma once

#include "common/plan/mesh/divisibility.h"
#include "common/plan/models/model_spec.h"

namespace titan::models {

// What tensor and expert ranks have to divide of a model (mesh::check_divisible); nothing of its batch.
mesh::Sizes split_sizes(const ModelSpec& spec);

}  // namespace titan::models
