#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace titan::hf_config {

// GenerationConfig settings of a model from its generation_config.json.
struct GenerationConfig {
  std::vector<int64_t> stop_tokens;      // eos_token_id: one number or several.
  std::vector<std::string> not_applied;  // Settings that change the tokens of transformers' generate() and are not
                                         // supported here: "repetition_penalty = 1.8".
};

// Reads the settings of `file`, which may be null. Skips settings of sampling (do_sample, temperature, top_k, top_p)
// and of length, which the caller chooses.
GenerationConfig read_generation_config(const nlohmann::json& file);

// Returns the tokens of "eos_token_id", which config.json has, too.
std::vector<int64_t> stop_tokens_of(const nlohmann::json& file);

}  // namespace titan::hf_config
