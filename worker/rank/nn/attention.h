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

// Rows of a projection that a factor on one head's logits goes to: of every `head_rows` rows (the head's own) those in
// [begin, begin + count), times the factor to the power of `power`.
struct LogitRows {
  Parameter* parameter = nullptr;  // Weight or bias; dim 0 counts the rows of all heads.
  int64_t head_rows = 0;
  int64_t begin = 0, count = 0;
  double power = 1;
};

// A self-attention sub-block, whatever its projections are.
class SelfAttention {
 public:
  virtual ~SelfAttention() = default;
  virtual at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) const = 0;  // [B, T, dim], same

  virtual int64_t heads() const = 0;  // Of queries, in the whole layer.
  // How each query head's logits shrink by a factor of its own, whatever the other heads' factors are. Empty: queries
  // and keys are normed after their projections, whose size reaches no logit.
  virtual std::vector<LogitRows> logit_rows() const = 0;

  Seams seams;                  // Around the whole sub-block.
  Projections project;          // All first projections of the input together, while it is gathered. Empty: one by one.
  AttentionCore core = attend;  // `parallel` replaces it for context parallelism.
  // Where counted passes note the largest logit of each head that this rank has (AttentionInput::largest).
  at::Tensor largest_logits;

 protected:
  at::Tensor notes(const MicrobatchContext& context) const { return context.counting ? largest_logits : at::Tensor(); }
};

// A block with self-attention; the runtime finds those whose logits it limits.
class HasAttention {
 public:
  virtual ~HasAttention() = default;
  virtual SelfAttention& self_attention() = 0;
};

// Queries of far tokens grow, so that attention over a long past stays sharp (arXiv 2501.19399):
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
  Init in_init;                            // wq, wk, wv
  Init out_init;                           // wo
  std::optional<Init> bias_init;           // Biases on all four projections.
  std::optional<Init> sinks_init;          // A learned logit per head that takes weight but has no value (GPT-OSS).
  std::optional<double> qk_norm_eps;       // RMSNorm of every query and key head before the rotation (Qwen3).
  std::optional<double> rotated_norm_eps;  // The same without weights after the rotation (Llama 4 as released).
  std::optional<QueryTemperature> temperature;  // Llama 4 as released, in layers without positions.
  AttentionMask mask;
};

// Grouped-query self-attention with rotary positions.
class GroupedAttention : public SelfAttention {
 public:
  // A null rope: no positions. `fqn`: "layers.0.attention".
  GroupedAttention(const Declare& declare, const std::string& fqn, const AttentionOptions& options,
                   std::shared_ptr<const Rope> rope);
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) const override;
  int64_t heads() const override { return options_.heads; }
  std::vector<LogitRows> logit_rows() const override;

  // Declared in this order: sinks, q_norm, k_norm, wq, wk, wv, wo (common/plan/models lists them so).
  Parameter* sinks = nullptr;  // [heads]; null: none.
  std::optional<RmsNorm> q_norm, k_norm;
  Linear wq, wk, wv, wo;
  AttentionMask mask;
  const AttentionOptions& options() const { return options_; }  // As built: counts of the whole layer.

 private:
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
  double softmax_scale = 0;
  Init in_init, out_init;
  AttentionMask mask;
};

// What latent attention has of its tokens before keys and values grow out of the latents.
struct LatentInput {
  at::Tensor q;           // [B, T, H, nope + rope], rotated.
  at::Tensor latent;      // [B, T, kv_lora], normed.
  at::Tensor shared_key;  // [B, T, 1, rope], rotated.
};
// [B, T, H, v]; undefined: the layer goes on as it does in training.
using LatentCore = std::function<at::Tensor(const LatentInput&, const MicrobatchContext&)>;

// DeepSeek's multi-head latent attention (arXiv 2405.04434): keys and values come from one low-rank projection, beside
// one rotated key that all heads share.
class LatentAttention : public SelfAttention {
 public:
  LatentAttention(const Declare& declare, const std::string& fqn, const LatentAttentionOptions& options,
                  std::shared_ptr<const Rope> rope);
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) const override;
  int64_t heads() const override { return options_.heads; }
  std::vector<LogitRows> logit_rows() const override;

  std::optional<Linear> wq;                                           // Without q-LoRA.
  std::optional<Linear> wq_a;                                         // [q_lora, dim]
  std::optional<RmsNorm> q_norm;                                      // [q_lora]
  std::optional<Linear> wq_b;                                         // [heads * (nope + rope), q_lora]
  std::optional<Linear> wkv_a;                                        // [kv_lora + rope, dim]
  std::optional<RmsNorm> kv_norm;                                     // [kv_lora]
  std::optional<Linear> wkv_b;                                        // [heads * (nope + v), kv_lora]
  std::optional<Linear> wo;                                           // [dim, heads * v]
  const LatentAttentionOptions& options() const { return options_; }  // As built: counts of the whole layer.

  // Asked first, where somebody keeps latents in place of keys and values; empty: not.
  LatentCore latent_core;

 private:
  const LatentAttentionOptions options_;
  std::shared_ptr<const Rope> rope_;
};

}  // namespace titan::nn
