#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_pairs.h"

// Attention over keys that come in several blocks: all in one tensor under a mask, or from other ranks one after
// another. Exact: blocks are merged by the log of their sums of exponentials.
namespace titan::nn {

// With neighbours in the last dimension, which kernels take for granted; nearly always the tensor itself.
inline at::Tensor dense_heads(const at::Tensor& heads) { return heads.stride(3) == 1 ? heads : heads.contiguous(); }

// The result with sinks ([H], undefined: none) as one more key without value; `out` may be used up.
BlockOutput with_sinks(BlockOutput result, const at::Tensor& sinks);
// Of the sinks, where `result` has them.
at::Tensor grad_sinks(const at::Tensor& sinks, const at::Tensor& grad_out, const BlockOutput& result);

class BlockwiseAttention {
 public:
  // `once`: every query is in exactly one pair, so that nothing is merged.
  BlockwiseAttention(at::Tensor q, int64_t v_dim, double scale, bool once);

  void add(const at::Tensor& k, const at::Tensor& v, const std::vector<BlockPair>& pairs);

  // The attention [B, H, T, Dv] of q's type, its tokens before its heads in memory, and the log of its denominator,
  // both with the sinks ([H], undefined: none) as one more key without value. Once, after the last block.
  BlockOutput finish(const at::Tensor& sinks);

 private:
  void merge(const BlockPair& pair, const BlockOutput& block);

  const at::Tensor q_;
  const int64_t v_dim_;
  const bool once_;
  std::unique_ptr<AttentionKernel> kernel_;
  BlockOutput total_;  // Undefined until the first block.
};

// A gradient [B, H, T, D] that blocks add to, in at least fp32.
class GradientSum {
 public:
  // `like`: the tensor whose gradient this is. Its own memory, tokens before heads.
  explicit GradientSum(const at::Tensor& like);
  // Adds to what `target` holds.
  static GradientSum into(at::Tensor target);

  void add(const at::Tensor& part, int64_t row, int64_t begin);
  // The sum so far; zeros if there was none.
  at::Tensor take();

 private:
  std::vector<int64_t> shape_;
  at::TensorOptions options_;
  at::Tensor sum_;
};

class BlockwiseGradients {
 public:
  // `merged`: what finish() returned.
  BlockwiseGradients(const at::Tensor& grad_out, at::Tensor q, BlockOutput merged, double scale);

  // Adds to q's gradient, and to those of this block's keys and values.
  void add(const at::Tensor& k, const at::Tensor& v, const std::vector<BlockPair>& pairs, GradientSum& grad_k,
           GradientSum& grad_v);

  at::Tensor grad_q();  // Of q's type.
  at::Tensor grad_sinks(const at::Tensor& sinks) const;

 private:
  const at::Tensor grad_out_, q_;
  const BlockOutput merged_;
  std::unique_ptr<AttentionKernel> kernel_;
  GradientSum grad_q_;
};

}  // namespace titan::nn
