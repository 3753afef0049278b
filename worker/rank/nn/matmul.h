#pragma once

// The three matrix products of a layer with weights [out, in], and the same of experts. bf16 on the CPU goes to Titan's
// own kernels where they are chosen (worker/rank/kernels/choice.h), everything else to LibTorch. Results have the
// inputs' type, or a wider `result`: fp32 of bf16 operands are the sums before they are rounded. product_speed()
// measures them.

#include <ATen/ATen.h>

#include <optional>

#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

using ResultType = std::optional<at::ScalarType>;

// x [..., in] w^T: [..., out].
at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight, ResultType result = {});
// The input's gradient: dy [..., out] w: [..., in].
at::Tensor times(const at::Tensor& dy, const at::Tensor& weight, ResultType result = {});
// sum += the same, or begins with it where `sum` is undefined.
void add_times(at::Tensor& sum, const at::Tensor& dy, const at::Tensor& weight);
// The weight's: dy^T x over all rows: [out, in].
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, ResultType result = {});

// The products of rows that belong to one expert after the other, with weights [experts, out, in]; rows of none count
// for nothing and have zeros in the results. LibTorch's take all experts in one call where the groups have their ends
// and rows lie as its kernel for GPUs reads them, and one expert a call otherwise.
at::Tensor grouped_times_transposed(const at::Tensor& x, const at::Tensor& weights, const RowGroups& groups,
                                    ResultType result = {});
at::Tensor grouped_times(const at::Tensor& dy, const at::Tensor& weights, const RowGroups& groups,
                         ResultType result = {});
// Zeros for an expert without rows.
at::Tensor grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                   ResultType result = {});

// Whether products of tensors like these two go to Titan's own kernels.
bool own_products_take(const at::Tensor& x, const at::Tensor& y);

// FLOP/s of matrix products of `type` as layers compute them on a CPU: the best of some that take about a millisecond
// of one thread's own time, times the threads of this thread's products. Takes about 10 ms, or two products of
// 128 x 256 x 256 where these are slower.
double product_speed(at::ScalarType type);

}  // namespace titan::nn
