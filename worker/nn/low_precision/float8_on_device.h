#pragma once

#include <ATen/ATen.h>

#include "worker/nn/product_recipe.h"

// What worker/nn/low_precision/float8.h computes, by Titan's own kernels of a device, with the same bits: one or two
// passes over bf16 numbers instead of LibTorch's seven. Undefined (an operand without scales) where there are no such
// kernels, or where they do not take x: it lies in memory without gaps, and its rows are multiples of eight numbers (of
// sixteen, and so is their count, where a matrix is turned).
namespace titan::nn::on_device {

at::Tensor amax_of(const at::Tensor& x);
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// A matrix of eight-bit numbers that lies by columns, in memory row by row.
at::Tensor by_rows(const at::Tensor& values);

}  // namespace titan::nn::on_device
