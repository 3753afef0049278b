#pragma once

// Reads what differs from layer to layer, as the numbers of a ModelSpec.

#include <vector>

#include "common/plan/hf_config/keys.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"

namespace titan::hf_config {

// Checks a per-layer list, if the file has it, against the only supported one.
void expect_list(Keys& keys, const char* key, const nlohmann::json& only);

// Reads which layers have a sliding window of `window` tokens (0: the file has none): those that "layer_types" names,
// else those of `usual`. `decider`: key from which `usual` follows, for messages. Refused: a list that is neither "all
// layers from one on" nor "all from one on but every n-th".
void take_windows(Keys& keys, int64_t window, const std::vector<bool>& usual, const char* decider,
                  models::ModelSpec& spec);

// Reads "no_rope_layers", which has 0 where a layer has no positions. Without the list, every n-th layer has none
// ("no_rope_layer_interval").
void take_unrotated_layers(Keys& keys, models::ModelSpec& spec);

}  // namespace titan::hf_config
