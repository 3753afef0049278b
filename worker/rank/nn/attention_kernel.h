#pragma once

// AttentionKernel computes softmax attention of one block of queries over one block of keys. Each device has a
// different one. AttentionPlan computes a whole call, forward and backward, and attend_by() runs it under autograd.

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_pairs.h"

namespace titan::nn {

// Result of one block of q [B, H, Tq, D], k [B, Hkv, Tk, D] and v [B, Hkv, Tk, Dv]. Their last dimension must be
// contiguous, and their other strides are arbitrary.
struct BlockOutput {
  at::Tensor out;  // [B, H, Tq, Dv], in q's type.
  at::Tensor lse;  // [B, H, Tq], at least fp32: log of the sum of exp(scores).
};

// How the scores of a softmax follow from products of queries and keys.
struct ScoreForm {
  double scale = 1;
  double softcap = 0;  // AttentionInput::softcap.
};

struct AttentionBlockGradients {
  at::Tensor q, k, v;  // [B, H, Tq, D], [B, Hkv, Tk, D], [B, Hkv, Tk, Dv].
};

class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  // Every query must see a key, and every key must be seen. BlockOutput states the shapes.
  virtual BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) = 0;

  // Computes this block's share of the gradients of a softmax over many blocks with the merged result (out, lse), for
  // grad_out [B, H, Tq, Dv]. The probabilities are exp(scores - lse), and the softmax's own term needs the merged out
  // (FlashAttention, arXiv 2205.14135).
  virtual AttentionBlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const BlockOutput& merged, const Band& band) = 0;
};

// Makes the kernel for tensors like q [B, H, T, D] and values of size v_size: on the CPU Titan's (attention_ranges.h)
// or LibTorch's, on CUDA LibTorch's, on meta one that returns only shapes. Make one per pass, because it may keep a
// mask. Capped scores are computed by basic operations on every device. Throws for other devices.
std::unique_ptr<AttentionKernel> make_attention_kernel(const at::Tensor& q, int64_t v_size, const ScoreForm& scores);

// Make kernels from LibTorch's. The plain one uses basic operations and stores all scores. It serves float64 on CUDA.
std::unique_ptr<AttentionKernel> make_cpu_attention_kernel(double scale);
std::unique_ptr<AttentionKernel> make_cuda_attention_kernel(double scale);
std::unique_ptr<AttentionKernel> make_plain_attention_kernel(double scale);
// Computes capped scores by basic operations in at least fp32, and stores all scores of a block: callers pass blocks of
// at most kMaxStoredScores (cut_queries()).
inline constexpr int64_t kMaxStoredScores = 1 << 24;
std::unique_ptr<AttentionKernel> make_softcap_attention_kernel(const ScoreForm& scores);

// Makes the mask that is added to scores, and keeps it for the next block of the same band and shape: all inner blocks
// of a window share one.
class BandMask {
 public:
  // Returns [queries, keys], with rows a multiple of `alignment` elements apart.
  const at::Tensor& get(const Band& band, int64_t queries, int64_t keys, const at::TensorOptions& options,
                        int64_t alignment = 1);

 private:
  Band band_;
  at::Tensor mask_;  // [queries, keys]
};

// Pads heads [B, H, T, D] with zeros to [B, H, T, size], which is exact for queries, keys and values.
at::Tensor pad_heads(const at::Tensor& heads, int64_t size);

// Cuts heads [B, H, T, D] to [B, H, T, size]. If anything is cut, the result is a copy with tokens before heads in
// memory.
at::Tensor trim_heads(const at::Tensor& heads, int64_t size);

// Gradients of AttentionInput's tensors, in their shapes.
struct AttentionGradients {
  at::Tensor q, k, v;  // [B, H, T, D], [B, Hkv, T, D], [B, Hkv, T, Dv]
  at::Tensor sinks;    // [H]. Undefined: none.
};

// Computes the attention of one call and, in the backward pass, its gradients. Shapes are those of AttentionInput.
// Heads have a contiguous last dimension, and sinks [H] may be undefined.
class AttentionPlan : public torch::CustomClassHolder {
 public:
  bool causal = true;  // A query sees half of the keys on average, otherwise all of them.

  // Returns the number of keys of the whole row, of which k [B, Hkv, T, D] may be a rank's share.
  virtual int64_t keys(const at::Tensor& k) const { return k.size(2); }

  // q is [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv].
  virtual BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks) const = 0;
  // grad_out is [B, H, T, Dv]. `result` is what forward returned.
  virtual AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& sinks,
                                      const BlockOutput& result) const = 0;
};

// Returns the attention [B, H, T, Dv] with its backward pass. It may be the result that was kept from the block's first
// pass (worker/rank/nn/saved_activations.h).
at::Tensor attend_by(c10::intrusive_ptr<AttentionPlan> plan, const AttentionInput& input);

}  // namespace titan::nn
