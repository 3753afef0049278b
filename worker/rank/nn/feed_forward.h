#pragma once

// Provides the dense feed-forward and its activations: SwiGLU and GPT-OSS's clamped form.

#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "worker/rank/nn/layers.h"

namespace titan::nn {

// Computes w2(silu(w1 x) * w3 x) (SwiGLU).
class FeedForward {
 public:
  // Like torchtitan, draws w1 from `w1_init`, and w2 and w3 from `depth_init`.
  FeedForward(const Declare& declare, const std::string& fqn, int64_t dim, int64_t hidden, Init w1_init,
              Init depth_init);
  at::Tensor forward(const at::Tensor& input) const;  // [B, T, dim] -> [B, T, dim]

  Linear w1, w2, w3;
  Seams seams;                         // Around the whole sub-block.
  Projections project = project_each;  // w1 and w3 of the (gathered) input.
};

// Returns silu(gate) * linear (arXiv 2002.05202), each [..., n]. bf16 uses Titan's own kernel if it is chosen
// (worker/rank/kernels/choice.h), which rounds once and saves only the operands.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& linear);
// The same if `linear` [..., n] is not computed yet: LibTorch's path activates the gate first and frees its operand.
at::Tensor swiglu(at::Tensor gate, const std::function<at::Tensor()>& linear);

// GPT-OSS's form over pairs (gate, linear) that alternate in the last dimension, [..., 2 n] -> [..., n]: g *
// sigmoid(1.702 g) * (clamp(linear, -limit, limit) + 1) with g = min(gate, limit).
at::Tensor clamped_swiglu(const at::Tensor& x, double limit);

}  // namespace titan::nn
