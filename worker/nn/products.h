#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

// The three products of a layer with weights [out, in], and the same of experts. bf16 on the CPU goes to Titan's own
// kernels where they are chosen (worker/kernels/choice.h), everything else to LibTorch; results have the inputs' type.
namespace titan::nn {

// x [..., in] w^T: [..., out].
at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight);
// The input's gradient: dy [..., out] w: [..., in].
at::Tensor times(const at::Tensor& dy, const at::Tensor& weight);
// The weight's: dy^T x over all rows: [out, in].
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x);

// Of rows that belong to one expert after the other, `rows` of them to each, with weights [experts, out, in].
// LibTorch's are called an expert at a time.
at::Tensor grouped_times_transposed(const at::Tensor& x, const at::Tensor& weights, const std::vector<int64_t>& rows);
at::Tensor grouped_times(const at::Tensor& dy, const at::Tensor& weights, const std::vector<int64_t>& rows);
// Zeros for an expert without rows.
at::Tensor grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const std::vector<int64_t>& rows);

// Calls visit(group, first row, rows) for every group, empty ones included.
template <typename Visit>
void for_each_group(const std::vector<int64_t>& rows, Visit&& visit) {
  int64_t first = 0;
  for (size_t group = 0; group < rows.size(); ++group) {
    visit(static_cast<int64_t>(group), first, rows[group]);
    first += rows[group];
  }
}

// Whether products of tensors like these two go to Titan's own kernels.
bool own_products_take(const at::Tensor& x, const at::Tensor& y);

}  // namespace titan::nn
