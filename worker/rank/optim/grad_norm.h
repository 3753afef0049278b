#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace titan::optim {

// Returns the sum of the squares of all elements of tensors of any shape, float64 [] on their device. Sum it over the
// mesh before taking its root. Accumulates in fp64, in an order that depends neither on threads nor on the numbers.
// Infinities and NaN propagate.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

// Returns the divisor of the gradients that limits their global norm, float64 [], to max_norm: max(1, (norm + 1e-6) /
// max_norm), float64 [] on the norm's device, or 1 if max_norm is 0. A non-finite norm gives a non-finite divisor, so
// check the norm first.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

}  // namespace titan::optim
