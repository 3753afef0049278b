#pragma once

// The three matrix products of a layer with weights [out, in], and the same for experts. bf16 on the CPU uses Titan's
// own kernels if chosen (worker/rank/kernels/choice.h), and everything else LibTorch. Results have the inputs' type, or
// a wider `result`: fp32 results of bf16 operands are the sums before rounding. product_speed() measures the products.

#include <ATen/ATen.h>

#include <optional>

#include "worker/rank/nn/row_groups.h"

namespace titan::nn {

using ResultType = std::optional<at::ScalarType>;

// Returns x [..., in] times weight [out, in] transposed: [..., out].
at::Tensor matmul_nt(const at::Tensor& x, const at::Tensor& weight, ResultType result = {});
// Returns the input's gradient, dy [..., out] times weight [out, in]: [..., in].
at::Tensor matmul_nn(const at::Tensor& dy, const at::Tensor& weight, ResultType result = {});
// Adds matmul_nn(dy, weight) to sum [..., in], or sets sum to it if undefined.
void add_matmul_nn(at::Tensor& sum, const at::Tensor& dy, const at::Tensor& weight);
// Returns the weight's gradient, dy [..., out] transposed times x [..., in], over all rows: [out, in].
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, ResultType result = {});

// Products of rows x [n, in] or dy [n, out] that belong to one expert after the other, with weights [experts, out, in]:
// [n, out], then [n, in]. Rows of no expert are ignored and have zeros in the results. LibTorch computes all experts in
// one call if the groups have their ends and rows are aligned for its GPU kernel, otherwise one expert per call.
at::Tensor grouped_matmul_nt(const at::Tensor& x, const at::Tensor& weights, const RowGroups& groups,
                             ResultType result = {});
at::Tensor grouped_matmul_nn(const at::Tensor& dy, const at::Tensor& weights, const RowGroups& groups,
                             ResultType result = {});
// Returns [experts, out, in], with zeros for an expert without rows.
at::Tensor grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                   ResultType result = {});

// Whether products of tensors like x [..., k] and y [..., k] use Titan's own kernels.
bool can_use_own_gemm(const at::Tensor& x, const at::Tensor& y);

// Returns the FLOP/s of matrix products of `type`, as layers compute them on a CPU: the best of some that take about a
// millisecond of one thread's CPU time, times at::get_num_threads(). Takes about 10 ms, or two products of 128 x 256 x
// 256 if these are slower.
double product_speed(at::ScalarType type);

}  // namespace titan::nn
