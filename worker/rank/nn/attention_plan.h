#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_kernel.h"

namespace titan::nn {

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
