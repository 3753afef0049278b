#pragma once

// AttentionKernel computes softmax attention of one block of queries over one block of keys: it is what differs between
// devices. AttentionPlan says how a whole call is computed, forward and backward, and attend_by() runs it under
// autograd.

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_pairs.h"

namespace titan::nn {

// One block's result. Shapes: q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv]; any strides with neighbours in
// the last dimension.
struct BlockOutput {
  at::Tensor out;  // [B, H, Tq, Dv], of q's type.
  at::Tensor lse;  // [B, H, Tq], at least fp32: log of the sum of exp(scores).
};

struct BlockGradients {
  at::Tensor q, k, v;
};

class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  // Every query must see a key, and every key be seen.
  virtual BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Band& band) = 0;

  // This block's share of the gradients of a softmax over many blocks, whose merged result is (out, lse): the
  // probabilities are exp(scores - lse) and the softmax's own term needs the merged out (FlashAttention,
  // arXiv 2205.14135).
  virtual BlockGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const BlockOutput& merged, const Band& band) = 0;
};

// The kernel for tensors like q, and values of `v_size`: fused ones on CPU and CUDA, shapes only on meta. One per pass:
// it may keep a mask.
std::unique_ptr<AttentionKernel> make_attention_kernel(const at::Tensor& q, int64_t v_size, double scale);

// By device; make_attention_kernel chooses. The plain one writes all scores down: for float64 on CUDA.
std::unique_ptr<AttentionKernel> make_cpu_attention_kernel(double scale);
std::unique_ptr<AttentionKernel> make_cuda_attention_kernel(double scale);
std::unique_ptr<AttentionKernel> make_plain_attention_kernel(double scale);

// A mask to add to the scores, kept for the next block of the same shape: all inner blocks of a window share one.
class BandMask {
 public:
  // [queries, keys], rows `alignment` elements apart or a multiple.
  const at::Tensor& get(const Band& band, int64_t queries, int64_t keys, const at::TensorOptions& options,
                        int64_t alignment = 1);

 private:
  Band band_;
  at::Tensor mask_;
};

// Appends zeros to the last dimension up to `size`; exact for heads of queries, keys and values.
at::Tensor pad_heads(const at::Tensor& heads, int64_t size);

// Drops them again, and their memory; tokens lie before heads.
at::Tensor trim_heads(const at::Tensor& heads, int64_t size);

struct AttentionGradients {
  at::Tensor q, k, v;
  at::Tensor sinks;  // Undefined: there are none.
};

// How one call computes its attention; travels to its backward pass. Heads come with neighbours in the last dimension,
// sinks [H] may be undefined.
class AttentionPlan : public torch::CustomClassHolder {
 public:
  // Of the whole row, of which a rank may have a share; about half of them are seen by a query.
  virtual int64_t keys(const at::Tensor& k) const { return k.size(2); }

  virtual BlockOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& sinks) const = 0;
  // `result`: what forward returned.
  virtual AttentionGradients backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& sinks,
                                      const BlockOutput& result) const = 0;
};

// The attention [B, H, T, Dv] with its backward pass. Its result may be the one kept from the block's first pass
// (worker/rank/nn/kept_results.h).
at::Tensor attend_by(c10::intrusive_ptr<AttentionPlan> plan, const AttentionInput& input);

}  // namespace titan::nn
