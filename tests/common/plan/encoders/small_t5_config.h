#pragma once

#include "nlohmann/json.hpp"

namespace titan::testing {

// The config.json of a small T5.
inline nlohmann::json small_t5_config() {
  return {{"model_type", "t5"},
          {"architectures", {"T5EncoderModel"}},
          {"vocab_size", 19},
          {"d_model", 10},
          {"num_layers", 2},
          {"num_heads", 3},
          {"d_kv", 4},
          {"d_ff", 14},
          {"feed_forward_proj", "gated-gelu"}};
}

}  // namespace titan::testing
