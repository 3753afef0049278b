#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace titan::optim {

// Sum of the squares of all elements as a float64 scalar on the tensors' device, to be summed over the mesh before its
// root is taken. Accumulates in fp64 in an order that depends on neither threads nor the tensors' other contents;
// non-finite values come through as inf or nan.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

// What gradients are divided by so that their global norm, a float64 scalar, does not exceed max_norm: max(1, (norm +
// 1e-6) / max_norm), where the norm is; 1 where max_norm is 0. A non-finite norm gives a non-finite divisor: check the
// norm first.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

}  // namespace titan::optim
