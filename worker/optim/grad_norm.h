#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace titan::optim {

// Sum of the squares of all elements as a float64 scalar on the tensors' device, to be summed over the mesh before its
// root is taken. Accumulates in fp64 in an order that depends on neither threads nor the tensors' other contents;
// non-finite values come through as inf or nan.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

// What gradients are multiplied by so that their global norm does not exceed max_norm: min(1, max_norm / (norm +
// 1e-6)). A non-finite norm gives a non-finite or zero coefficient: check the norm first.
double clip_coefficient(double norm, double max_norm);

}  // namespace titan::optim
