#pragma once

#include <ATen/ATen.h>

#include "worker/rank/nn/low_precision/groups_apart.h"

// What worker/rank/nn/low_precision/float8.h computes, by Titan's own kernels of a device, with the same bits: one or
// two passes over bf16 numbers instead of LibTorch's seven. Undefined (an operand without scales) where there are no
// such kernels, or where they do not take x: it lies in memory without gaps, and its rows are multiples of eight
// numbers (of sixteen, and so is their count, where a matrix is turned).
namespace titan::nn::on_device {

at::Tensor amax_of(const at::Tensor& x);
Operand quantised(const at::Tensor& x, const at::Tensor& amax, at::ScalarType float8, bool power_of_two);
Operand quantised_rows(const at::Tensor& x);
Operand quantised_columns(const at::Tensor& x);

// Of groups whose ends the device knows (worker/rank/nn/low_precision/groups_apart.h).
GroupsApart groups_apart(const RowGroups& groups, const at::Tensor& rows, int64_t room);
Operand rows_apart(const at::Tensor& x, const GroupsApart& to);
Operand columns_apart(const at::Tensor& x, const GroupsApart& to, int64_t groups);

// A matrix of eight-bit numbers that lies by columns, in memory row by row.
at::Tensor by_rows(const at::Tensor& values);

}  // namespace titan::nn::on_device
