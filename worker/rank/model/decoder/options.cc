#include "worker/rank/model/decoder/options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/plan/models/decoder_options.h"
#include "worker/rank/model/attention_masks.h"

namespace titan::model {
namespace {

bool stretched(const models::ModelSpec& spec, int64_t seq_len) {
  return spec.yarn && (!spec.yarn->only_beyond_original || seq_len > spec.yarn->original_seq_len);
}

// Returns the factor by which YaRN scales queries and keys: 1 if positions are not stretched.
double growth(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

// DeepSeek increases the scale of the scores when YaRN stretches the positions. GPT-OSS scales the rotation instead.
double latent_scale(const models::ModelSpec& spec, int64_t seq_len) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  if (!stretched(spec, seq_len) || spec.yarn->scales_cos_sin) return scale;
  const double sharper = growth(spec.yarn->factor, spec.yarn->mscale);
  return scale * sharper * sharper;
}

absl::Status check_attention(const models::ModelSpec& spec) {
  const auto refuse = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, " ", spec.flavor, ": ", what...));
  };
  if (spec.n_heads <= 0 || spec.n_kv_heads <= 0 || spec.n_heads % spec.n_kv_heads != 0) {
    return refuse("n_heads (", spec.n_heads, ") must be a positive multiple of n_kv_heads (", spec.n_kv_heads, ")");
  }
  if (spec.attention == models::Attention::kGrouped) {
    if (spec.head_dim <= 0 || spec.head_dim % 2 != 0)
      return refuse("head_dim (", spec.head_dim, ") must be even and > 0");
    if (spec.v_head_dim != spec.head_dim) {
      return refuse("v_head_dim (", spec.v_head_dim, ") must equal head_dim (", spec.head_dim, ")");
    }
  } else if (spec.kv_lora_rank <= 0 || spec.qk_rope_head_dim <= 0 || spec.qk_rope_head_dim % 2 != 0 ||
             spec.head_dim != spec.qk_nope_head_dim + spec.qk_rope_head_dim) {
    return refuse("latent attention needs kv_lora_rank (", spec.kv_lora_rank, ") > 0, qk_rope_head_dim (",
                  spec.qk_rope_head_dim, ") even and > 0, and head_dim (", spec.head_dim, ") = qk_nope_head_dim (",
                  spec.qk_nope_head_dim, ") + qk_rope_head_dim");
  } else if (spec.nope_layer_step != 0) {
    return refuse("latent attention needs positions in every layer, so set nope_layer_step (", spec.nope_layer_step,
                  ") to 0");
  }
  if (spec.nope_layer_step == 1)
    return refuse("nope_layer_step (1) leaves no layer with positions; set it to 0 or at least 2");
  return absl::OkStatus();
}

absl::Status check_experts(const models::ModelSpec& spec) {
  const models::MoeSpec& moe = *spec.moe;
  const auto refuse = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, " ", spec.flavor, ": ", what...));
  };
  if (moe.score_func != "sigmoid" && moe.score_func != "softmax") {
    return refuse("score_func \"", moe.score_func, "\" is neither sigmoid nor softmax");
  }
  if (moe.top_k < 1 || moe.top_k > moe.num_experts) {
    return refuse("top_k (", moe.top_k, ") must be from 1 to num_experts (", moe.num_experts, ")");
  }
  if (moe.num_expert_groups > 0) {
    const int64_t size = moe.num_experts / moe.num_expert_groups;
    if (moe.num_experts % moe.num_expert_groups != 0 || size < 2 || moe.num_limited_groups < 1 ||
        moe.num_limited_groups > moe.num_expert_groups || moe.num_limited_groups * size < moe.top_k) {
      return refuse("num_limited_groups (", moe.num_limited_groups, ") of num_expert_groups (", moe.num_expert_groups,
                    ") equal groups of num_experts (", moe.num_experts, ") must hold top_k (", moe.top_k,
                    ") experts or more, and each group two or more");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check(const models::ModelSpec& spec) {
  if (absl::Status bad = check_attention(spec); !bad.ok()) return bad;
  if (const std::string wrong = models::wrong_option(spec); !wrong.empty())
    return absl::InvalidArgumentError(absl::StrCat(spec.name, " ", spec.flavor, ": ", wrong));
  if (spec.moe) return check_experts(spec);
  if (spec.swiglu_limit > 0) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, " ", spec.flavor, ": swiglu_limit (", spec.swiglu_limit,
                                                   ") applies to experts, but the model has none"));
  }
  return absl::OkStatus();
}

nn::RopeOptions rope_options(const models::ModelSpec& spec, int64_t seq_len) {
  const bool latent = spec.attention == models::Attention::kLatent;
  nn::RopeOptions options{.head_dim = latent                ? spec.qk_rope_head_dim
                                      : spec.rotary_dim > 0 ? spec.rotary_dim
                                                            : spec.head_dim,
                          .max_seq_len = seq_len,
                          .theta = spec.rope_theta};
  if (spec.rope == models::RopeStyle::kRotateHalf) options.pairs = nn::RopePairs::kRotateHalf;
  options.scaling.enabled = spec.rope_scaling.has_value();
  if (spec.rope_scaling) {
    options.scaling.factor = spec.rope_scaling->factor;
    options.scaling.low_freq_factor = spec.rope_scaling->low_freq_factor;
    options.scaling.high_freq_factor = spec.rope_scaling->high_freq_factor;
    options.scaling.original_context = spec.rope_scaling->original_seq_len;
  }
  if (stretched(spec, seq_len)) {
    const models::YarnScaling& yarn = *spec.yarn;
    options.yarn = nn::YarnStretch{.factor = yarn.factor,
                                   .beta_fast = yarn.beta_fast,
                                   .beta_slow = yarn.beta_slow,
                                   .original_context = yarn.original_seq_len,
                                   .whole_bounds = !yarn.scales_cos_sin || yarn.rounds_bounds};
    if (yarn.scales_cos_sin)
      options.yarn->cos_sin_factor = yarn.cos_sin_factor > 0 ? yarn.cos_sin_factor : growth(yarn.factor, 1);
  }
  return options;
}

nn::RopeOptions window_rope_options(const models::ModelSpec& spec, int64_t seq_len) {
  models::ModelSpec plain = spec;
  plain.rope_theta = spec.window_rope_theta;
  plain.rope_scaling.reset();
  plain.yarn.reset();
  return rope_options(plain, seq_len);
}

nn::FeedForwardForm feed_forward_form(const models::ModelSpec& spec) {
  nn::FeedForwardForm form{.gelu_tanh = spec.activation == models::Activation::kGeluTanh};
  if (spec.mlp_bias) form.bias_init = nn::Init{};
  return form;
}

nn::AttentionOptions attention_options(const models::ModelSpec& spec, int64_t layer, const LayerInits& inits) {
  nn::AttentionOptions options{.dim = spec.dim,
                               .heads = spec.n_heads,
                               .kv_heads = spec.n_kv_heads,
                               .head_dim = spec.head_dim,
                               .in_init = inits.attention_in,
                               .out_init = inits.attention_out,
                               .out_bias = spec.attention_out_bias,
                               .whole_norm = spec.qk_norm_whole,
                               .norm_offset = spec.norm_offset,
                               .rotary_dim = spec.rotary_dim,
                               .scale = spec.attention_scale,
                               .softcap = spec.attention_softcap,
                               .mask = attention_mask(spec, layer)};
  if (spec.attention_bias) options.bias_init = inits.attention_bias.value_or(nn::Init{});
  if (spec.attention_sinks) options.sinks_init = inits.sinks.value_or(nn::Init{});
  if (spec.qk_norm) options.qk_norm_eps = spec.norm_eps;
  const bool positions = spec.layer_has_positions(layer);
  if (spec.rotated_qk_norm && positions) options.rotated_norm_eps = spec.norm_eps;
  if (spec.query_temperature_floor > 0 && !positions) {
    options.temperature = nn::QueryTemperature{spec.query_temperature_floor, spec.query_temperature_scale};
  }
  return options;
}

nn::LatentAttentionOptions latent_options(const models::ModelSpec& spec, int64_t layer, const LayerInits& inits,
                                          int64_t seq_len) {
  return {.dim = spec.dim,
          .heads = spec.n_heads,
          .q_lora_rank = spec.q_lora_rank,
          .kv_lora_rank = spec.kv_lora_rank,
          .nope_dim = spec.qk_nope_head_dim,
          .rope_dim = spec.qk_rope_head_dim,
          .v_dim = spec.v_head_dim,
          .norm_eps = spec.norm_eps,
          .norm_offset = spec.norm_offset,
          .softmax_scale = latent_scale(spec, seq_len),
          .in_init = inits.attention_in,
          .out_init = inits.attention_out,
          .mask = attention_mask(spec, layer)};
}

nn::MoeOptions moe_options(const models::ModelSpec& spec, const LayerInits& inits) {
  const models::MoeSpec& moe = *spec.moe;
  nn::MoeOptions options = inits.moe;
  options.router = {.num_experts = moe.num_experts,
                    .top_k = moe.top_k,
                    .softmax = moe.score_func == "softmax",
                    .route_norm = moe.route_norm,
                    .route_scale = moe.route_scale,
                    .num_groups = moe.num_expert_groups,
                    .limited_groups = moe.num_limited_groups};
  options.dim = spec.dim;
  options.hidden = moe.hidden;
  options.shared_hidden = moe.num_shared_experts * moe.hidden;
  options.score_before_experts = moe.score_before_experts;
  options.gate_bias = moe.gate_bias;
  options.swiglu_limit = spec.swiglu_limit;
  return options;
}

}  // namespace titan::model
