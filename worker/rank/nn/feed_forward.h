#pragma once

// Provides the dense feed-forward and its activations: SwiGLU, GeGLU and GPT-OSS's clamped form.

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <string>

#include "worker/rank/nn/layers.h"

namespace titan::nn {

struct FeedForwardForm {
  bool gelu_tanh = false;         // GELU by tanh in place of SiLU (GeGLU).
  std::optional<Init> bias_init;  // Biases on all three projections.
};

// Computes w2(silu(w1 x) * w3 x) (SwiGLU), or the form with another activation or with biases.
class FeedForward {
 public:
  // Like torchtitan, draws w1 from `w1_init`, and w2 and w3 from `depth_init`.
  FeedForward(const Declare& declare, const std::string& fqn, int64_t dim, int64_t hidden, Init w1_init,
              Init depth_init, const FeedForwardForm& form = {});
  at::Tensor forward(const at::Tensor& input) const;  // [B, T, dim] -> [B, T, dim]

  Linear w1, w2, w3;
  Seams seams;                         // Around the whole sub-block.
  Projections project = project_each;  // w1 and w3 of the (gathered) input.

 private:
  const bool gelu_tanh_;
};

// Returns silu(gate) * linear (arXiv 2002.05202), each [..., n]. bf16 uses Titan's own kernel if it is chosen
// (worker/rank/kernels/choice.h), which rounds once and saves only the operands.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& linear);
// The same if `linear` [..., n] is not computed yet: LibTorch's path activates the gate first and frees its operand.
at::Tensor swiglu(at::Tensor gate, const std::function<at::Tensor()>& linear);

// Returns gelu(gate) * linear with GELU's approximation by tanh (arXiv 2002.05202), each [..., n].
at::Tensor geglu(const at::Tensor& gate, const at::Tensor& linear);

// GPT-OSS's form over pairs (gate, linear) that alternate in the last dimension, [..., 2 n] -> [..., n]: g *
// sigmoid(1.702 g) * (clamp(linear, -limit, limit) + 1) with g = min(gate, limit).
at::Tensor clamped_swiglu(const at::Tensor& x, double limit);

}  // namespace titan::nn
