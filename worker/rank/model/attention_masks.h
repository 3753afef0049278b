#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/parallel/context_deal.h"

namespace titan::model {

// What the queries of a layer see.
nn::AttentionMask attention_mask(const models::ModelSpec& spec, int64_t layer);

// Of all layers, each mask once.
std::vector<parallel::LayersOfMask> attention_masks(const models::ModelSpec& spec);

}  // namespace titan::model
