#pragma once

// The one list of a spec's members under their names: manifests, overrides and comparisons of models use it. A new
// member is a line in model_spec.h and a line here.

#include <array>
#include <concepts>
#include <type_traits>

#include "common/plan/models/model_spec.h"

namespace titan::models {

// Names of an enum's values, in their order.
template <typename Enum>
inline constexpr std::array<const char*, 0> kNamesOf;
template <>
inline constexpr std::array kNamesOf<Attention> = {"grouped", "latent"};
template <>
inline constexpr std::array kNamesOf<RopeStyle> = {"interleaved", "rotate_half"};
template <>
inline constexpr std::array kNamesOf<Mask> = {"causal", "block_causal"};
template <>
inline constexpr std::array kNamesOf<NormPlacement> = {"pre", "post", "both"};
template <>
inline constexpr std::array kNamesOf<Activation> = {"silu", "gelu_tanh"};

template <typename T, typename Spec>
concept Of = std::same_as<std::remove_const_t<T>, Spec>;

// Each calls visit(name, member) for all members of a spec in order.
template <Of<LlamaRopeScaling> T, typename Visit>
void visit_members(T& scaling, Visit&& visit) {
  visit("factor", scaling.factor);
  visit("low_freq_factor", scaling.low_freq_factor);
  visit("high_freq_factor", scaling.high_freq_factor);
  visit("original_seq_len", scaling.original_seq_len);
}

template <Of<YarnScaling> T, typename Visit>
void visit_members(T& yarn, Visit&& visit) {
  visit("factor", yarn.factor);
  visit("beta_fast", yarn.beta_fast);
  visit("beta_slow", yarn.beta_slow);
  visit("original_seq_len", yarn.original_seq_len);
  visit("mscale", yarn.mscale);
  visit("only_beyond_original", yarn.only_beyond_original);
  visit("scales_cos_sin", yarn.scales_cos_sin);
  visit("cos_sin_factor", yarn.cos_sin_factor);
  visit("rounds_bounds", yarn.rounds_bounds);
}

template <Of<MoeSpec> T, typename Visit>
void visit_members(T& moe, Visit&& visit) {
  visit("num_experts", moe.num_experts);
  visit("num_shared_experts", moe.num_shared_experts);
  visit("top_k", moe.top_k);
  visit("hidden", moe.hidden);
  visit("score_func", moe.score_func);
  visit("route_norm", moe.route_norm);
  visit("route_scale", moe.route_scale);
  visit("gate_bias", moe.gate_bias);
  visit("score_before_experts", moe.score_before_experts);
  visit("num_expert_groups", moe.num_expert_groups);
  visit("num_limited_groups", moe.num_limited_groups);
  visit("load_balance_coeff", moe.load_balance_coeff);
  visit("first_layer", moe.first_layer);
  visit("layer_step", moe.layer_step);
}

template <Of<FluxSpec> T, typename Visit>
void visit_members(T& flux, Visit&& visit) {
  visit("n_double_blocks", flux.n_double_blocks);
  visit("n_single_blocks", flux.n_single_blocks);
  visit("mlp_ratio", flux.mlp_ratio);
  visit("in_channels", flux.in_channels);
  visit("txt_width", flux.txt_width);
  visit("vec_width", flux.vec_width);
  visit("time_channels", flux.time_channels);
  visit("axes_dim", flux.axes_dim);
  visit("guidance_embed", flux.guidance_embed);
}

template <Of<VisionSpec> T, typename Visit>
void visit_members(T& vision, Visit&& visit) {
  visit("dim", vision.dim);
  visit("ffn_hidden", vision.ffn_hidden);
  visit("n_layers", vision.n_layers);
  visit("n_heads", vision.n_heads);
  visit("channels", vision.channels);
  visit("patch_size", vision.patch_size);
  visit("position_side", vision.position_side);
  visit("norm_eps", vision.norm_eps);
  visit("out_dim", vision.out_dim);
}

template <Of<Qwen3VlVisionSpec> T, typename Visit>
void visit_members(T& vision, Visit&& visit) {
  visit("dim", vision.dim);
  visit("ffn_hidden", vision.ffn_hidden);
  visit("n_layers", vision.n_layers);
  visit("n_heads", vision.n_heads);
  visit("channels", vision.channels);
  visit("patch_size", vision.patch_size);
  visit("temporal_patch_size", vision.temporal_patch_size);
  visit("merge", vision.merge);
  visit("position_side", vision.position_side);
  visit("out_dim", vision.out_dim);
  visit("deepstack_layers", vision.deepstack_layers);
}

template <Of<Qwen3VlSpec> T, typename Visit>
void visit_members(T& spec, Visit&& visit) {
  visit("vision", spec.vision);
  visit("mrope_section", spec.mrope_section);
  visit("image_token", spec.image_token);
  visit("video_token", spec.video_token);
  visit("vision_start_token", spec.vision_start_token);
  visit("vision_end_token", spec.vision_end_token);
}

// `flops_per_unit` depends on the length of a job's rows.
template <Of<OtherModel> T, typename Visit>
void visit_members(T& other, Visit&& visit) {
  visit("blocks", other.blocks);
  visit("parameters", other.parameters);
}

template <Of<ModelSpec> T, typename Visit>
void visit_members(T& spec, Visit&& visit) {
  visit("name", spec.name);
  visit("flavor", spec.flavor);
  visit("flux", spec.flux);
  visit("other", spec.other);
  visit("vision", spec.vision);
  visit("qwen3_vl", spec.qwen3_vl);
  visit("dim", spec.dim);
  visit("n_layers", spec.n_layers);
  visit("n_heads", spec.n_heads);
  visit("n_kv_heads", spec.n_kv_heads);
  visit("head_dim", spec.head_dim);
  visit("v_head_dim", spec.v_head_dim);
  visit("vocab_size", spec.vocab_size);
  visit("ffn_hidden", spec.ffn_hidden);
  visit("max_seq_len", spec.max_seq_len);
  visit("norm_eps", spec.norm_eps);
  visit("depth_init", spec.depth_init);
  visit("eos_id", spec.eos_id);
  visit("tied_embeddings", spec.tied_embeddings);
  visit("attention", spec.attention);
  visit("mask", spec.mask);
  visit("qk_norm", spec.qk_norm);
  visit("qk_norm_whole", spec.qk_norm_whole);
  visit("attention_bias", spec.attention_bias);
  visit("attention_out_bias", spec.attention_out_bias);
  visit("attention_sinks", spec.attention_sinks);
  visit("attention_scale", spec.attention_scale);
  visit("attention_softcap", spec.attention_softcap);
  visit("sliding_window", spec.sliding_window);
  visit("window_step", spec.window_step);
  visit("window_first_layer", spec.window_first_layer);
  visit("window_rope_theta", spec.window_rope_theta);
  visit("nope_layer_step", spec.nope_layer_step);
  visit("attention_chunk", spec.attention_chunk);
  visit("nope_ends_step", spec.nope_ends_step);
  visit("query_temperature_floor", spec.query_temperature_floor);
  visit("query_temperature_scale", spec.query_temperature_scale);
  visit("rotated_qk_norm", spec.rotated_qk_norm);
  visit("q_lora_rank", spec.q_lora_rank);
  visit("kv_lora_rank", spec.kv_lora_rank);
  visit("qk_nope_head_dim", spec.qk_nope_head_dim);
  visit("qk_rope_head_dim", spec.qk_rope_head_dim);
  visit("rope", spec.rope);
  visit("rope_theta", spec.rope_theta);
  visit("rotary_dim", spec.rotary_dim);
  visit("rope_scaling", spec.rope_scaling);
  visit("yarn", spec.yarn);
  visit("norm_placement", spec.norm_placement);
  visit("norm_offset", spec.norm_offset);
  visit("activation", spec.activation);
  visit("mlp_bias", spec.mlp_bias);
  visit("embedding_scale", spec.embedding_scale);
  visit("residual_scale", spec.residual_scale);
  visit("logit_divisor", spec.logit_divisor);
  visit("logit_softcap", spec.logit_softcap);
  visit("swiglu_limit", spec.swiglu_limit);
  visit("moe", spec.moe);
}

}  // namespace titan::models
