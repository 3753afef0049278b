#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace titan::hf_config {

// What a generation_config.json says about the texts of a model.
struct Generation {
  std::vector<int64_t> stop_tokens;      // eos_token_id: a number or several.
  std::vector<std::string> not_applied;  // "repetition_penalty = 1.8": settings with which transformers' generate()
                                         // chooses other tokens, and that nothing here follows.
};

// `file` may be null. Settings of sampling (do_sample, temperature, top_k, top_p) and of length are left out: they are
// the caller's to choose.
Generation read_generation(const nlohmann::json& file);

// Those of "eos_token_id", as config.json has it, too.
std::vector<int64_t> stop_tokens_of(const nlohmann::json& file);

}  // namespace titan::hf_config
