#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/models/flux_spec.h"
#include "common/plan/models/qwen3_vl_spec.h"
#include "common/plan/models/vision_spec.h"

namespace titan::models {

enum class Attention {
  kGrouped,  // Queries share key-value heads (GQA; plain multi-head attention when the counts are equal).
  kLatent,   // DeepSeek's low-rank keys and values (MLA).
};

enum class RopeStyle {
  kInterleaved,  // Pairs (2i, 2i+1) as complex numbers.
  kRotateHalf,   // Pairs (i, i + head_dim/2).
};

enum class Mask {
  kCausal,
  kBlockCausal,  // Causal inside each document; documents end with eos.
};

// Where a layer normalizes around attention and around the feed-forward.
enum class NormPlacement {
  kPre,   // Normalizes what the branch reads: h + f(norm(h)).
  kPost,  // Normalizes what the branch adds: h + norm(f(h)), as in OLMo 2.
  kBoth,  // h + norm(f(norm(h))), as in Gemma 2 and GLM-4.
};

// The function of the gate in a feed-forward with two inner projections.
enum class Activation {
  kSilu,      // SwiGLU.
  kGeluTanh,  // GeGLU with GELU's approximation by tanh, as in Gemma.
};

// Llama's frequency scaling: wavelengths above original/low are divided by `factor`, those below original/high are
// kept, and those between are blended.
struct LlamaRopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_seq_len = 8192;
};

// YaRN: frequencies between the beta_fast and beta_slow rotations of `original_seq_len` are blended with
// frequency/factor.
struct YarnScaling {
  double factor = 40;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_seq_len = 4096;
  double mscale = 1;  // Latent attention multiplies its softmax scale by (0.1 * mscale * ln(factor) + 1)^2.
  bool only_beyond_original = true;  // Applied only when seq_len > original_seq_len (DeepSeek); always in GPT-OSS.
  bool scales_cos_sin = false;       // Scales cos and sin by (0.1 * ln(factor) + 1) instead of the softmax scale.
  double cos_sin_factor = 0;         // With scales_cos_sin: this factor instead; 0: none.
  bool rounds_bounds = false;        // With scales_cos_sin: bounds of the blend are whole pairs, as they always are
                                     // without it. GPT-OSS's are not.
};

struct MoeSpec {
  int64_t num_experts = 8;
  int64_t num_shared_experts = 1;  // Together one feed-forward of width num_shared_experts * hidden.
  int64_t top_k = 1;
  int64_t hidden = 0;                  // Width of one expert.
  std::string score_func = "sigmoid";  // or "softmax"
  bool route_norm = false;
  double route_scale = 1;
  bool gate_bias = false;
  bool score_before_experts = true;
  int64_t num_expert_groups = 0;  // 0: no node-limited routing.
  int64_t num_limited_groups = 0;
  double load_balance_coeff = 1e-3;
  // Layer i has experts when i >= first_layer and (i + 1) % layer_step == 0; other layers have a dense feed-forward.
  int64_t first_layer = 0;
  int64_t layer_step = 1;
};

// A library's model that is not a decoder: what otherwise follows from a decoder's numbers.
struct OtherModel {
  std::vector<std::string> blocks;  // Names of its blocks in order, at least two.
  int64_t parameters = 0;
  int64_t flops_per_unit = 0;  // Forward and backward, for one unit of throughput (model::Objective::unit).
};

// One flavor of a model family: every number that shapes it. Plain data, from which the controller plans and ranks
// build the model.
struct ModelSpec {
  std::string name;                 // "llama3"
  std::string flavor;               // "8B"
  std::optional<FluxSpec> flux;     // Set: the numbers below that a transformer of images lacks have no meaning.
  std::optional<OtherModel> other;  // Set: of the numbers below only `dim`, the width of activations, has a meaning.
  // Set: the model also reads images, through this tower. The numbers below are those of its language model, whose
  // width is the tower's out_dim.
  std::optional<VisionSpec> vision;
  std::optional<Qwen3VlSpec> qwen3_vl;  // Likewise, through the tower of Qwen3-VL. At most one of the two is set.

  int64_t dim = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;  // Size of queries and keys; latent attention: qk_nope_head_dim + qk_rope_head_dim.
  int64_t v_head_dim = 0;
  int64_t vocab_size = 0;
  int64_t ffn_hidden = 0;  // Width of the dense feed-forward, after multiplier and rounding; 0 when every layer has
                           // experts.
  int64_t max_seq_len = 0;
  double norm_eps = 1e-5;
  bool depth_init = true;  // Residual output std falls with the layer's index, not with n_layers.
  int64_t eos_id = 0;      // Default document separator of block-causal masks.
  bool tied_embeddings = false;

  Attention attention = Attention::kGrouped;
  Mask mask = Mask::kCausal;
  bool qk_norm = false;            // RMSNorm on each query and key head before RoPE.
  bool qk_norm_whole = false;      // With qk_norm: over all heads of a token together, not on each (OLMo 2).
  bool attention_bias = false;     // On q, k and v projections.
  bool attention_out_bias = true;  // With attention_bias: also on the output projection.
  bool attention_sinks = false;
  double attention_scale = 0;      // Factor of the scores of grouped attention; 0: head_dim^-0.5.
  double attention_softcap = 0;    // Scores s become cap * tanh(s / cap) before the softmax (Gemma 2); 0: off.
  int64_t sliding_window = 0;      // Tokens that a layer with a window attends to, itself included; 0: no windows.
  int64_t window_step = 2;         // Layers with (id + 1) % window_step == 0 have no window; 0: all have one.
  int64_t window_first_layer = 0;  // Layers before it have no window either.
  double window_rope_theta = 0;    // Layers with a window rotate by this theta, without scaling (Gemma 3); 0: like the
                                   // others.
  int64_t nope_layer_step = 0;     // Every n-th layer (id % n == 0) has no RoPE and full attention; 0: none.
  int64_t attention_chunk = 0;  // With nope_layer_step, layers with RoPE attend inside blocks of this many tokens; 0:
                                // no blocks.
  bool nope_ends_step = false;  // Layers with (id + 1) % n == 0 have no RoPE instead, as in the released Llama 4.
  double query_temperature_floor = 0;    // Scales queries without RoPE by 1 + scale * ln(1 + floor((position + 1) /
                                         // floor)); 0: off.
  double query_temperature_scale = 0.1;  // The `scale` of that formula.
  bool rotated_qk_norm = false;          // Each rotated query and key head is normalized to rms 1.

  // Latent attention only.
  int64_t q_lora_rank = 0;  // 0: queries are projected directly.
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;

  RopeStyle rope = RopeStyle::kInterleaved;
  double rope_theta = 10000;
  int64_t rotary_dim = 0;  // Grouped attention rotates only the first channels of each head; 0: all.
  std::optional<LlamaRopeScaling> rope_scaling;
  std::optional<YarnScaling> yarn;

  NormPlacement norm_placement = NormPlacement::kPre;
  double norm_offset = 0;  // Every RMSNorm multiplies by its weight plus this number: 1 in Gemma.
  Activation activation = Activation::kSilu;
  bool mlp_bias = false;       // On the projections of dense feed-forwards.
  double embedding_scale = 1;  // Factor of the embeddings.
  double residual_scale = 1;   // Factor of what attention and feed-forward add (Granite).
  double logit_divisor = 1;    // Logits are divided by it (Granite).
  double logit_softcap = 0;    // Logits x become cap * tanh(x / cap) (Gemma 2); 0: off.

  double swiglu_limit = 0;  // GPT-OSS's clamped activation with biases on the experts; 0: plain SwiGLU.
  std::optional<MoeSpec> moe;

  bool reads_images() const { return vision.has_value() || qwen3_vl.has_value(); }
  bool layer_has_experts(int64_t layer) const {
    return moe.has_value() && layer >= moe->first_layer && (layer + 1) % moe->layer_step == 0;
  }
  bool layer_has_positions(int64_t layer) const {
    return nope_layer_step == 0 || (layer + (nope_ends_step ? 1 : 0)) % nope_layer_step != 0;
  }
  int64_t layer_window(int64_t layer) const {
    const bool full = layer < window_first_layer || (window_step > 0 && (layer + 1) % window_step == 0);
    return full ? 0 : sliding_window;
  }
  int64_t layer_chunk(int64_t layer) const {
    return nope_layer_step > 0 && layer_has_positions(layer) ? attention_chunk : 0;
  }
};

// Returns Llama's SwiGLU width: 2/3 of 4 * dim, times `multiplier`, rounded up to a multiple of `multiple_of`. Each
// step truncates to an integer.
constexpr int64_t llama_ffn_hidden(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t hidden = static_cast<int64_t>(2.0 * static_cast<double>(4 * dim) / 3.0);
  hidden = static_cast<int64_t>(multiplier * static_cast<double>(hidden));
  return (hidden + multiple_of - 1) / multiple_of * multiple_of;
}

}  // namespace titan::models
