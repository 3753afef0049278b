#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_pairs.h"

// Attention over keys that come in several blocks: all in one tensor under a mask, or one after another from other
// ranks. It is exact: blocks are merged by the log of their sums of exponentials.
namespace titan::nn {

// Returns heads [B, H, T, D] with a contiguous last dimension, which kernels require: nearly always the tensor itself.
inline at::Tensor dense_heads(const at::Tensor& heads) { return heads.stride(3) == 1 ? heads : heads.contiguous(); }

// Adds `sinks` ([H], undefined: none) to the result as one more key without value. May overwrite `out`.
BlockOutput with_sinks(BlockOutput result, const at::Tensor& sinks);
// Returns the gradient [H] of the sinks [H], which `result` must include. grad_out is [B, H, T, Dv].
at::Tensor grad_sinks(const at::Tensor& sinks, const at::Tensor& grad_out, const BlockOutput& result);

class BlockwiseAttention {
 public:
  // q is [B, H, T, D]. `once` states that every query is in exactly one pair, so that nothing is merged.
  BlockwiseAttention(at::Tensor q, int64_t v_dim, const ScoreForm& scores, bool once);

  // Adds the attention to keys k [B, Hkv, S, D] and values v [B, Hkv, S, Dv], in these pairs of blocks.
  void add(const at::Tensor& k, const at::Tensor& v, const std::vector<BlockPair>& pairs);

  // Returns the attention [B, H, T, Dv] in q's type and the log of its denominator [B, H, T], both with the sinks ([H],
  // undefined: none) as one more key without value. Call it once, after the last block.
  BlockOutput finish(const at::Tensor& sinks);

 private:
  void merge(const BlockPair& pair, const BlockOutput& block);

  const at::Tensor q_;  // [B, H, T, D]
  const int64_t v_dim_;
  const bool once_, capped_;
  std::unique_ptr<AttentionKernel> kernel_;
  BlockOutput total_;  // Undefined until the first block.
};

// A gradient [B, H, T, D] that blocks add to, in at least fp32.
class GradientSum {
 public:
  // `like` [B, H, T, D] is the tensor that has this gradient. Its memory is not used.
  explicit GradientSum(const at::Tensor& like);
  // Makes a sum that adds to `target` [B, H, T, D] in place.
  static GradientSum into(at::Tensor target);

  // Adds part [B or 1, H, tokens, D] at `row` (kAllRows: all) and from token `begin` on.
  void add(const at::Tensor& part, int64_t row, int64_t begin);
  // Returns the sum [B, H, T, D], or zeros if nothing was added.
  at::Tensor take();

 private:
  std::vector<int64_t> shape_;
  at::TensorOptions options_;
  at::Tensor sum_;  // [B, H, T, D]
};

class BlockwiseGradients {
 public:
  // grad_out is [B, H, T, Dv] and q [B, H, T, D]. `merged` is what finish() returned.
  BlockwiseGradients(const at::Tensor& grad_out, at::Tensor q, BlockOutput merged, const ScoreForm& scores);

  // Adds to q's gradient, and to those of this block's keys k [B, Hkv, S, D] and values v [B, Hkv, S, Dv].
  void add(const at::Tensor& k, const at::Tensor& v, const std::vector<BlockPair>& pairs, GradientSum& grad_k,
           GradientSum& grad_v);

  at::Tensor grad_q();                                   // [B, H, T, D], in q's type.
  at::Tensor grad_sinks(const at::Tensor& sinks) const;  // [H], like sinks.

 private:
  const at::Tensor grad_out_, q_;  // [B, H, T, Dv], [B, H, T, D]
  const BlockOutput merged_;
  const bool capped_;
  std::unique_ptr<AttentionKernel> kernel_;
  GradientSum grad_q_;
};

}  // namespace titan::nn
