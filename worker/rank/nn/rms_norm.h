#pragma once

#include <ATen/ATen.h>

namespace titan::nn {

// x / sqrt(mean(x x) + eps) over the last dimension, times the weight [dim] where it is defined. bf16 goes to
// Titan's own kernel where it is chosen (worker/rank/kernels/choice.h): it keeps the input and one factor a row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// What a layer goes on with beside its branch, and the norm that the branch reads: sum = x + residual [..., dim], or x
// itself where that is undefined, and rms_norm(sum). By Titan's own kernel it is one pass over memory forward, and one
// backward in which the gradients that come by both ways meet; results are rounded as those of the two operations are,
// the gradient once.
struct SumAndNorm {
  at::Tensor sum, norm;
};
SumAndNorm sum_and_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps);

}  // namespace titan::nn
