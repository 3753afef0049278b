#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace titan::nn {

// silu(gate) * linear (arXiv 2002.05202), of tensors of one shape. bf16 goes to Titan's own kernel where it is
// chosen (worker/rank/kernels/choice.h): it rounds once and keeps nothing besides the operands.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& linear);
// The same where `linear` is yet to be computed: LibTorch's path activates the gate first, and its operand is free.
at::Tensor swiglu(at::Tensor gate, const std::function<at::Tensor()>& linear);

// GPT-OSS's form over pairs (gate, linear) that alternate in the last dimension, [..., 2 n] -> [..., n]: with
// g = min(gate, limit), g * sigmoid(1.702 g) * (clamp(linear, -limit, limit) + 1).
at::Tensor clamped_swiglu(const at::Tensor& x, double limit);

}  // namespace titan::nn
