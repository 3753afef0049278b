#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/rank/kernels/cpu/attention.h"
#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_pairs.h"

// Attention by Titan's own CPU kernels, where every query sees one range of keys: all of a row's documents, chunks and
// windows in one call, without padding, copies or a mask in memory.
namespace titan::nn {

// Whether they are chosen (worker/rank/kernels/choice.h) and take these: bf16 on the CPU, heads of up to 256.
bool ranges_take(const at::Tensor& q, int64_t v_size);

// What each query sees.
struct VisibleKeys {
  std::vector<kernels::KeyRange> ranges;  // [queries], or [batch, queries].
  int64_t stride = 0;                     // From row to row of the batch; 0: all rows see alike.
};

// Of pairs that have every query exactly once.
VisibleKeys visible_keys(const std::vector<BlockPair>& pairs, int64_t batch, int64_t queries);

// Shapes and strides as for AttentionKernel; sinks [H] or undefined. Results lie with their tokens before their heads.
// A query that sees nothing has zeros, and -inf in lse.
BlockOutput ranges_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                           const VisibleKeys& visible, double scale);
// `result`: what forward returned, or for a piece of a longer row what its blocks came to together.
AttentionGradients ranges_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const at::Tensor& sinks, const BlockOutput& result,
                                   const VisibleKeys& visible, double scale);

// For blocks that come one after another.
std::unique_ptr<AttentionKernel> make_ranges_attention_kernel(double scale);

}  // namespace titan::nn
