#pragma once

// [model.override]: numbers of a model that a job changes. Members are those of models::ModelSpec; one that is not set
// keeps the value of the flavor, or of the folder's config.json.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace titan::models {
struct ModelSpec;
}

namespace titan::config {

struct RopeScalingOverride {
  std::optional<double> factor, low_freq_factor, high_freq_factor;
  std::optional<std::int64_t> original_seq_len;
};

struct YarnOverride {
  std::optional<double> factor, beta_fast, beta_slow;
  std::optional<std::int64_t> original_seq_len;
  std::optional<double> mscale;
  std::optional<bool> only_beyond_original, scales_cos_sin;
  std::optional<double> cos_sin_factor;
  std::optional<bool> rounds_bounds;
};

struct MoeOverride {
  std::optional<std::int64_t> num_experts, num_shared_experts, top_k, hidden;
  std::optional<std::string> score_func;
  std::optional<bool> route_norm;
  std::optional<double> route_scale;
  std::optional<bool> gate_bias, score_before_experts;
  std::optional<std::int64_t> num_expert_groups, num_limited_groups, first_layer, layer_step;
};

struct ModelOverrideSection {
  std::optional<std::int64_t> dim, n_layers, n_heads, n_kv_heads, head_dim, v_head_dim, vocab_size, ffn_hidden,
      max_seq_len;
  std::optional<double> norm_eps;
  std::optional<bool> depth_init;
  std::optional<std::int64_t> eos_id;
  std::optional<bool> tied_embeddings;
  std::optional<std::string> attention;
  std::optional<bool> qk_norm, qk_norm_whole, attention_bias, attention_out_bias, attention_sinks;
  std::optional<double> attention_scale, attention_softcap;
  std::optional<std::int64_t> sliding_window, window_step, window_first_layer;
  std::optional<double> window_rope_theta;
  std::optional<std::int64_t> nope_layer_step, attention_chunk;
  std::optional<bool> nope_ends_step;
  std::optional<double> query_temperature_floor, query_temperature_scale;
  std::optional<bool> rotated_qk_norm;
  std::optional<std::int64_t> q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim;
  std::optional<std::string> rope;
  std::optional<double> rope_theta;
  std::optional<std::int64_t> rotary_dim;
  std::optional<std::string> rope_type;  // Which scaling of RoPE the model has.
  std::optional<std::string> norm_placement;
  std::optional<double> norm_offset;
  std::optional<std::string> activation;
  std::optional<bool> mlp_bias;
  std::optional<double> embedding_scale, residual_scale, logit_divisor, logit_softcap, swiglu_limit;
  RopeScalingOverride rope_scaling;
  YarnOverride yarn;
  MoeOverride moe;
};

// Changes the numbers that the section sets. Three of them follow others where they are not set themselves: head_dim is
// dim / n_heads if it was so before, or qk_nope_head_dim + qk_rope_head_dim in latent attention, and v_head_dim is
// head_dim in grouped attention. An embedding scaled by the root of dim, as Gemma's, stays so. Errors: InvalidArgument
// naming the key, when a number does not apply to the model or contradicts another.
absl::Status apply_override(const ModelOverrideSection& section, models::ModelSpec& spec);

}  // namespace titan::config
