#pragma once

// Self-attention sub-blocks, grouped-query and multi-head latent, project their input, rotate queries and keys, and
// call a core for the softmax.

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/rope.h"

namespace titan::nn {

// Rows of a projection that are scaled when the logits of a head are multiplied by a factor. Of each head's `head_rows`
// rows, those in [begin, begin + count) are multiplied by the factor to the power of `power`.
struct LogitRows {
  Parameter* parameter = nullptr;  // Weight or bias. Dim 0 has the rows of one head after another.
  int64_t head_rows = 0;
  int64_t begin = 0, count = 0;
  double power = 1;
};

// A self-attention sub-block with any kind of projections.
class SelfAttention {
 public:
  virtual ~SelfAttention() = default;
  // [B, T, dim] -> [B, T, dim]
  virtual at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) const = 0;

  virtual int64_t heads() const = 0;  // Query heads of the whole layer.
  // Returns the rows to multiply so that each query head's logits shrink by a separate factor. Empty if queries and
  // keys are normed after their projections, because the norm removes such a factor.
  virtual std::vector<LogitRows> logit_rows() const = 0;

  Seams seams;                  // Around the whole sub-block.
  Projections project;          // Computes the first projections while the input is gathered. Empty: nothing overlaps.
  AttentionCore core = attend;  // `parallel` replaces it for context parallelism.
  // float64 [H]: largest logit of each of this rank's heads, raised by passes with MicrobatchContext::counting
  // (AttentionInput::largest). Undefined: not computed.
  at::Tensor max_logits;

 protected:
  // Returns max_logits [H], or an undefined tensor if the pass does not count.
  at::Tensor notes(const MicrobatchContext& context) const { return context.counting ? max_logits : at::Tensor(); }
};

// A block with self-attention. Code that limits logits or caches keys and values finds such blocks by a cast to this
// type.
class HasAttention {
 public:
  virtual ~HasAttention() = default;
  virtual SelfAttention& self_attention() = 0;
};

// Scales up the queries of late positions, so that attention over a long past stays sharp (arXiv 2501.19399):
// 1 + scale * ln(1 + floor((position + 1) / floor)).
struct QueryTemperature {
  double floor = 8192;
  double scale = 0.1;
};

struct AttentionOptions {
  int64_t dim = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // Each serves heads / kv_heads query heads.
  int64_t head_dim = 0;
  Init in_init;                   // wq, wk and wv.
  Init out_init;                  // wo.
  std::optional<Init> bias_init;  // Biases on wq, wk and wv, and on wo too with `out_bias`.
  bool out_bias = true;
  std::optional<Init> sinks_init;          // A learned logit per head that takes weight but has no value (GPT-OSS).
  std::optional<double> qk_norm_eps;       // RMSNorm of every query and key head before the rotation (Qwen3).
  bool whole_norm = false;                 // That norm is over all heads of a token together (OLMo 2).
  double norm_offset = 0;                  // Added to the weights of those norms (Gemma 3).
  std::optional<double> rotated_norm_eps;  // The same without weights, after the rotation (released Llama 4).
  std::optional<QueryTemperature> temperature;  // Released Llama 4, in layers without positions.
  int64_t rotary_dim = 0;                       // Channels of each head that rotate, the first ones. 0: all.
  double scale = 0;                             // Factor of the scores. 0: head_dim^-0.5.
  double softcap = 0;                           // AttentionInput::softcap.
  AttentionMask mask;
};

// Returns the rotation of each token of a microbatch, [B * T, head_dim] (rope_rows()).
using TokenRotation = std::function<at::Tensor(const MicrobatchContext&)>;

// Grouped-query self-attention with rotary positions.
class GroupedAttention : public SelfAttention {
 public:
  // A null `rope` means no positions. `fqn` is for example "layers.0.attention".
  GroupedAttention(const Declare& declare, const std::string& fqn, const AttentionOptions& options,
                   std::shared_ptr<const Rope> rope);
  // [B, T, dim] -> [B, T, dim]
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) const override;
  int64_t heads() const override { return options_.heads; }
  std::vector<LogitRows> logit_rows() const override;

  // Declared in this order, as common/plan/models lists them: sinks, q_norm, k_norm, wq, wk, wv, wo.
  Parameter* sinks = nullptr;             // [heads]. Null: none.
  std::optional<RmsNorm> q_norm, k_norm;  // [head_dim], or with `whole_norm` of the size of wq's and wk's results.
  Linear wq, wk, wv, wo;
  AttentionMask mask;
  TokenRotation rotation;  // Rotates by separate rows for each token, in place of `rope`. Empty: does not.
  const AttentionOptions& options() const { return options_; }  // Options of the whole layer, before it is split.

 private:
  at::Tensor normed_heads(const at::Tensor& projected, const std::optional<RmsNorm>& norm) const;
  at::Tensor rotate(const at::Tensor& heads, const MicrobatchContext& context) const;

  const AttentionOptions options_;
  std::shared_ptr<const Rope> rope_;
};

struct LatentAttentionOptions {
  int64_t dim = 0;
  int64_t heads = 0;
  int64_t q_lora_rank = 0;  // 0: queries are projected directly.
  int64_t kv_lora_rank = 0;
  int64_t nope_dim = 0, rope_dim = 0, v_dim = 0;  // Per head.
  double norm_eps = 1e-5;
  double norm_offset = 0;  // Added to the norms' weights.
  double softmax_scale = 0;
  Init in_init, out_init;
  AttentionMask mask;
};

// Input of latent attention, before keys and values are computed from the latents.
struct LatentInput {
  at::Tensor q;           // [B, T, H, nope + rope], rotated.
  at::Tensor latent;      // [B, T, kv_lora], normed.
  at::Tensor shared_key;  // [B, T, 1, rope], rotated.
};
// Returns [B, T, H, v], or an undefined tensor to make the layer compute keys and values as in training.
using LatentCore = std::function<at::Tensor(const LatentInput&, const MicrobatchContext&)>;

// DeepSeek's multi-head latent attention (arXiv 2405.04434): keys and values come from one low-rank projection,
// alongside one rotated key that all heads share.
class LatentAttention : public SelfAttention {
 public:
  LatentAttention(const Declare& declare, const std::string& fqn, const LatentAttentionOptions& options,
                  std::shared_ptr<const Rope> rope);
  // [B, T, dim] -> [B, T, dim]
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) const override;
  int64_t heads() const override { return options_.heads; }
  std::vector<LogitRows> logit_rows() const override;

  std::optional<Linear> wq;                                           // [heads * (nope + rope), dim], without q-LoRA.
  std::optional<Linear> wq_a;                                         // [q_lora, dim]
  std::optional<RmsNorm> q_norm;                                      // [q_lora]
  std::optional<Linear> wq_b;                                         // [heads * (nope + rope), q_lora]
  std::optional<Linear> wkv_a;                                        // [kv_lora + rope, dim]
  std::optional<RmsNorm> kv_norm;                                     // [kv_lora]
  std::optional<Linear> wkv_b;                                        // [heads * (nope + v), kv_lora]
  std::optional<Linear> wo;                                           // [dim, heads * v]
  const LatentAttentionOptions& options() const { return options_; }  // Options of the whole layer, before it is split.

  // Called before keys and values are computed, if set. A cache sets it to store latents in place of them.
  LatentCore latent_core;

 private:
  const LatentAttentionOptions options_;
  std::shared_ptr<const Rope> rope_;
};

}  // namespace titan::nn
