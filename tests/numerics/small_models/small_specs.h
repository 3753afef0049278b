#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "common/plan/models/registry.h"

// Small models of the families with all features of each, in six layers that every mesh of up to eight ranks can split.
namespace titan::testing {

inline models::ModelSpec shrink(models::ModelSpec spec) {
  spec.dim = 32;
  spec.n_layers = 6;
  spec.n_heads = 8;
  spec.n_kv_heads = 4;
  spec.head_dim = spec.v_head_dim = 8;
  spec.vocab_size = 64;
  if (spec.ffn_hidden > 0) spec.ffn_hidden = 48;
  spec.max_seq_len = 64;
  spec.eos_id = 5;
  if (spec.moe) {
    spec.moe->num_experts = 8;
    spec.moe->hidden = 16;
    spec.moe->top_k = std::min<int64_t>(spec.moe->top_k, 2);
  }
  return spec;
}

// Returns the model with every kind of layer of its family at least once, and no more layers than a pipeline's four
// stages need. It is for tests that train many jobs and do not depend on the number of layers.
inline models::ModelSpec shallow(models::ModelSpec spec) {
  spec.n_layers = 4;
  return spec;
}

inline const std::vector<std::string>& small_families() {
  static const auto& names =
      *new std::vector<std::string>{"llama3", "qwen3", "qwen3_moe", "deepseek_v3", "llama4", "llama4_irope", "gpt_oss"};
  return names;
}

// Returns one of small_families(). A name such as "llama3_packed" limits attention to documents.
inline models::ModelSpec small_spec(const std::string& name) {
  absl::string_view family = name;
  const bool packed = absl::ConsumeSuffix(&family, "_packed");
  const auto base = [&](const char* of, const char* flavor) {
    models::ModelSpec spec = shrink(models::find(of, flavor).value());
    if (packed) spec.mask = models::Mask::kBlockCausal;
    return spec;
  };
  if (family == "llama3") return base("llama3", "debugmodel");
  if (family == "qwen3") return base("qwen3", "debugmodel");
  if (family == "qwen3_moe") return base("qwen3", "debugmodel_moe");
  if (family == "llama4") return base("llama4", "debugmodel");
  if (family == "llama4_irope") {
    models::ModelSpec spec = base("llama4", "debugmodel_irope");
    spec.attention_chunk = 16;
    return spec;
  }
  if (family == "gpt_oss") {
    models::ModelSpec spec = base("gpt_oss", "debugmodel");
    spec.sliding_window = 12;
    return spec;
  }
  if (family == "deepseek_v3") {
    models::ModelSpec spec = base("deepseek_v3", "debugmodel");
    spec.n_kv_heads = spec.n_heads;
    spec.q_lora_rank = 16;
    spec.kv_lora_rank = 16;
    spec.qk_nope_head_dim = 8;
    spec.qk_rope_head_dim = 4;
    spec.head_dim = 12;
    spec.moe->score_func = "sigmoid";
    spec.moe->route_norm = true;
    spec.moe->route_scale = 2.5;
    spec.moe->num_expert_groups = 4;
    spec.moe->num_limited_groups = 2;
    return spec;
  }
  throw std::logic_error("no small model of family " + name);
}

}  // namespace titan::testing
