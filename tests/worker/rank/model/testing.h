#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "common/plan/models/registry.h"
#include "tests/worker/rank/model/reference_model.h"
#include "worker/rank/model/model.h"

namespace titan::testing {

// Returns a small form of a flavor: all features of its family, in two to five layers.
inline models::ModelSpec small_spec(const std::string& name, const std::string& flavor) {
  models::ModelSpec spec = *models::find(name, flavor);
  spec.dim = 24;
  spec.n_layers = 2;
  spec.n_heads = 4;
  spec.n_kv_heads = spec.attention == models::Attention::kLatent || spec.n_kv_heads == spec.n_heads ? 4 : 2;
  spec.head_dim = spec.v_head_dim = 8;
  spec.vocab_size = 40;
  if (spec.ffn_hidden > 0) spec.ffn_hidden = 32;
  if (spec.attention == models::Attention::kLatent) {
    spec.kv_lora_rank = 20;
    spec.qk_nope_head_dim = 6;
    spec.qk_rope_head_dim = 4;
    spec.head_dim = 10;
    spec.v_head_dim = 8;
    if (spec.q_lora_rank > 0) spec.q_lora_rank = 12;
  }
  if (spec.nope_layer_step > 0) {
    spec.n_layers = 5;
    spec.attention_chunk = 7;
    if (spec.query_temperature_floor > 0) spec.query_temperature_floor = 5;
  }
  if (spec.sliding_window > 0) spec.sliding_window = 6;
  if (spec.moe) {
    spec.moe->hidden = 16;
    spec.moe->num_experts = 8;
    spec.moe->top_k = std::min<int64_t>(spec.moe->top_k, 3);
    if (spec.moe->num_expert_groups > 0) {
      spec.moe->num_expert_groups = 4;
      spec.moe->num_limited_groups = 2;
    }
    if (spec.moe->first_layer > 0) {
      spec.moe->first_layer = 1;
      spec.n_layers = 3;
    }
  }
  return spec;
}

// A small spec of these tests. There is one for each feature that some family computes differently.
struct SmallModel {
  std::string what;
  models::ModelSpec spec;
  int64_t seq_len;  // Sequence length that the model is built for.
};
inline void PrintTo(const SmallModel& model, std::ostream* out) { *out << model.what; }

inline std::vector<SmallModel> small_models() {
  std::vector<SmallModel> all;
  const auto add = [&](const char* what, const char* name, const char* flavor, int64_t seq_len = 32) {
    all.push_back({what, small_spec(name, flavor), seq_len});
    all.back().spec.flavor = what;
  };
  add("llama", "llama3", "8B");
  add("llama_tied", "llama3", "1B");
  add("llama_documents", "llama3", "8B_flex");
  add("llama4", "llama4", "debugmodel");
  add("llama4_every_layer", "llama4", "17bx16e");
  add("llama4_irope", "llama4", "debugmodel_irope");
  add("llama4_released", "llama4", "debugmodel_released");
  add("deepseek", "deepseek_v3", "debugmodel");
  add("deepseek_groups", "deepseek_v3", "671B");
  add("deepseek_softmax_groups", "deepseek_v3", "236B");
  add("deepseek_yarn", "deepseek_v3", "236B");
  all.back().spec.yarn->original_seq_len = 16;
  add("qwen3", "qwen3", "debugmodel");
  add("qwen3_untied", "qwen3", "8B");
  add("qwen3_experts", "qwen3", "debugmodel_moe");
  add("gpt_oss", "gpt_oss", "debugmodel");
  all.back().spec.head_dim = all.back().spec.v_head_dim = 16;  // YaRN's blend must lie inside the pairs.
  // Packed documents for families without such a flavor: a job selects them (model.attn_mask_type).
  const auto add_documents = [&](const char* what, const std::string& like) {
    const auto same = [&](const SmallModel& model) { return model.what == like; };
    all.push_back(*std::find_if(all.begin(), all.end(), same));
    all.back().what = all.back().spec.flavor = what;
    all.back().spec.mask = models::Mask::kBlockCausal;
  };
  add_documents("deepseek_documents", "deepseek");
  add_documents("qwen3_documents", "qwen3");
  add_documents("qwen3_experts_documents", "qwen3_experts");
  add_documents("gpt_oss_documents", "gpt_oss");
  return all;
}

// Draws leaves that require gradients, in order of declaration and the same for the same seed. Values are of order 1
// after every layer and for every one-dimensional parameter, so that every part has a visible effect.
Weights draw_weights(const model::Model& model, const models::ModelSpec& spec, uint64_t seed);
// Gives the model's parameters and buffers, including RoPE tables, these values in `type`.
void set_weights(const model::Model& model, const Weights& weights, at::ScalarType type);

// Draws documents of random lengths, numbered from 0: int64 [batch, length].
at::Tensor draw_documents(int64_t batch, int64_t length);

// Returns the norm of the difference, relative to the norm of `want`. Both have one shape.
double relative_error(const at::Tensor& got, const at::Tensor& want);

}  // namespace titan::testing
