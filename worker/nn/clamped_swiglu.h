#pragma once

#include <ATen/ATen.h>

namespace titan::nn {

// GPT-OSS's activation of a fused projection, whose even channels gate and whose odd channels are linear:
// [n, 2 h] -> [n, h], min(gate, limit) * sigmoid(1.702 min(gate, limit)) * (clamp(linear, -limit, limit) + 1).
// Keeps its input alone for the backward pass.
at::Tensor clamped_swiglu(const at::Tensor& x, double limit);

}  // namespace titan::nn
