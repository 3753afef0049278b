#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/numerics/small_models/small_specs.h"

// Small decoders with the options of families that this program's own flavors do not have.
namespace titan::testing {

inline const std::vector<std::string>& option_families() {
  static const auto& names = *new std::vector<std::string>{"like_gemma2", "like_gemma3", "like_olmo2",
                                                           "like_glm4",   "like_phi3",   "like_granite"};
  return names;
}

// Returns one of option_families().
inline models::ModelSpec option_spec(const std::string& family) {
  models::ModelSpec spec = shrink(models::find("llama3", "debugmodel").value());
  spec.flavor = family;
  spec.rope = models::RopeStyle::kRotateHalf;
  if (family == "like_gemma2" || family == "like_gemma3") {
    spec.norm_placement = models::NormPlacement::kBoth;
    spec.norm_offset = 1;
    spec.activation = models::Activation::kGeluTanh;
    spec.embedding_scale = 5.66;
    spec.tied_embeddings = true;
    spec.sliding_window = 12;
    spec.attention_scale = 0.4;
    if (family == "like_gemma2") {
      spec.attention_softcap = 3;
      spec.logit_softcap = 6;
    } else {
      spec.qk_norm = true;
      spec.window_step = 3;
      spec.window_rope_theta = 100;
    }
    return spec;
  }
  if (family == "like_olmo2") {
    spec.norm_placement = models::NormPlacement::kPost;
    spec.qk_norm = spec.qk_norm_whole = true;
    return spec;
  }
  if (family == "like_glm4") {
    spec.norm_placement = models::NormPlacement::kBoth;
    spec.rope = models::RopeStyle::kInterleaved;
    spec.rotary_dim = 4;
    spec.attention_bias = true;
    spec.attention_out_bias = false;
    return spec;
  }
  if (family == "like_phi3") {
    spec.rotary_dim = 6;
    spec.sliding_window = 12;
    spec.window_step = 0;
    return spec;
  }
  if (family == "like_granite") {
    spec.attention_bias = spec.mlp_bias = true;
    spec.attention_scale = 0.2;
    spec.embedding_scale = 12;
    spec.residual_scale = 0.22;
    spec.logit_divisor = 8;
    return spec;
  }
  throw std::logic_error("no small decoder " + family);
}

}  // namespace titan::testing
