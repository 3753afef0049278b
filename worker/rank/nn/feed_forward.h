#pragma once

// The dense feed-forward computes w2(silu(w1 x) * w3 x), and swiglu() is its activation, also in GPT-OSS's clamped
// form.

#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "worker/rank/nn/layers.h"

namespace titan::nn {

// SwiGLU: w2(silu(w1 x) * w3 x).
class FeedForward {
 public:
  // torchtitan draws w1 from one distribution and w2, w3 from the depth-scaled one.
  FeedForward(const Declare& declare, const std::string& fqn, int64_t dim, int64_t hidden, Init w1_init,
              Init depth_init);
  at::Tensor forward(const at::Tensor& input) const;  // [B, T, dim] -> [B, T, dim]

  Linear w1, w2, w3;
  Seams seams;                         // Around the whole sub-block.
  Projections project = project_each;  // w1 and w3 of the (gathered) input.
};

// silu(gate) * linear (arXiv 2002.05202), of tensors of one shape. bf16 goes to Titan's own kernel where it is
// chosen (worker/rank/kernels/choice.h): it rounds once and keeps nothing besides the operands.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& linear);
// The same where `linear` is yet to be computed: LibTorch's path activates the gate first, and its operand is free.
at::Tensor swiglu(at::Tensor gate, const std::function<at::Tensor()>& linear);

// GPT-OSS's form over pairs (gate, linear) that alternate in the last dimension, [..., 2 n] -> [..., n]: with
// g = min(gate, limit), g * sigmoid(1.702 g) * (clamp(linear, -limit, limit) + 1).
at::Tensor clamped_swiglu(const at::Tensor& x, double limit);

}  // namespace titan::nn
