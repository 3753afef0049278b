#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/rank/kernels/cpu/attention.h"
#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_pairs.h"

// Attention by Titan's own CPU kernels, in which every query sees one range of keys. One call computes all documents,
// chunks and windows of a row, without padding, copies or a mask in memory.
namespace titan::nn {

// Whether these kernels are chosen (worker/rank/kernels/choice.h) and accept q [B, H, T, D] with values of size v_size:
// bf16 on the CPU, heads up to 256.
bool can_use_range_attention(const at::Tensor& q, int64_t v_size);

// Range of keys that each query sees.
struct VisibleKeys {
  std::vector<kernels::KeyRange> ranges;  // [queries] or [batch, queries].
  int64_t stride = 0;                     // Elements between rows of the batch. 0: all rows see the same keys.
};

// Converts pairs that contain every query exactly once.
VisibleKeys visible_keys(const std::vector<BlockPair>& pairs, int64_t batch, int64_t queries);

// Shapes and strides are those of AttentionKernel, and sinks is [H] or undefined. Results have tokens before heads in
// memory. A query that sees no key gets zeros, and -inf in lse.
BlockOutput ranges_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                           const VisibleKeys& visible, double scale);
// grad_out is [B, H, T, Dv]. `result` is what ranges_forward() returned, or for a piece of a longer row the merged
// result of its blocks.
AttentionGradients ranges_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const at::Tensor& sinks, const BlockOutput& result,
                                   const VisibleKeys& visible, double scale);

// Makes an AttentionKernel, for keys that arrive in several blocks.
std::unique_ptr<AttentionKernel> make_ranges_attention_kernel(double scale);

}  // namespace titan::nn
