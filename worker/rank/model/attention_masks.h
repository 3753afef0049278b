#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/parallel/context_load_balance.h"

namespace titan::model {

// Returns the mask of a layer's attention.
nn::AttentionMask attention_mask(const models::ModelSpec& spec, int64_t layer);

// Returns the distinct masks of all layers, each with the number of its layers.
std::vector<parallel::LayersOfMask> attention_masks(const models::ModelSpec& spec);

}  // namespace titan::model
