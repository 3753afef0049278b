#pragma once

#include <ATen/ATen.h>

namespace titan::nn {

// x / sqrt(mean(x x) + eps) over the last dimension, times the weight [dim] where it is defined. bf16 goes to
// Titan's own kernel where it is chosen (worker/kernels/choice.h): it keeps the input and one factor a row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace titan::nn
