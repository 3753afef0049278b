#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) of rows [rows, dim]. Strides are in elements from row to row, and the
// elements of a row are contiguous. Statistics are fp32, and every result is rounded once. The bits do not depend on
// the threads. Declines a dim of 0, a residual without `sum`, and dweight without scratch.
namespace titan::kernels {

// y = s / sqrt(mean(s s) + eps) * weight. s is x, or with a residual x + residual, rounded to the type and written to
// `sum` (which may be x or the residual). The error is at most 1e-6 plus the rounding, while mean(s s) is finite.
struct RmsNormForward {
  int64_t rows = 0, dim = 0;
  Dtype type = Dtype::kBf16;  // Type of x, residual, sum, weight and y.
  const void* x = nullptr;    // [rows, dim]
  int64_t x_stride = 0;
  const void* residual = nullptr;  // [rows, dim]. Null: no residual and no sum.
  int64_t residual_stride = 0;
  void* sum = nullptr;  // [rows, dim]
  int64_t sum_stride = 0;
  const void* weight = nullptr;  // [dim]. Null: ones.
  void* y = nullptr;             // [rows, dim]. May be x without a residual.
  int64_t y_stride = 0;
  float* inverse_rms = nullptr;  // [rows], for the backward pass. Null: not kept.
  double eps = 0;
  int threads = 1;
};
bool rms_norm_forward(Level level, const RmsNormForward& args);

// With n = x inverse_rms and g = dy weight: dx = (g - n mean(n g)) inverse_rms + also, dweight = sum over rows of dy n.
// If forward had a residual, x is its sum, `also` the gradient that reaches the sum past the norm, and dx the gradient
// of both summands. The error of dx is at most 2e-6 of inverse_rms times the row's largest |g|, plus the rounding.
// dweight adds 32 fixed parts of the rows, each summed in fp32, with an error of at most 1e-5 of the sum of magnitudes.
struct RmsNormBackward {
  int64_t rows = 0, dim = 0;
  Dtype type = Dtype::kBf16;  // Type of x, dy, weight, also and dx.
  const void* x = nullptr;    // [rows, dim]
  int64_t x_stride = 0;
  const void* dy = nullptr;  // [rows, dim]
  int64_t dy_stride = 0;
  const void* weight = nullptr;        // [dim]. Null: ones.
  const float* inverse_rms = nullptr;  // [rows], from the forward pass.
  const void* also = nullptr;          // [rows, dim]. Null: nothing is added.
  int64_t also_stride = 0;
  void* dx = nullptr;  // [rows, dim]. May be x, dy or also.
  int64_t dx_stride = 0;
  void* dweight = nullptr;  // [dim]. Null: not wanted.
  Dtype dweight_type = Dtype::kF32;
  float* scratch = nullptr;  // [rms_norm_scratch(dim)] if dweight is wanted.
  int threads = 1;
};
bool rms_norm_backward(Level level, const RmsNormBackward& args);

constexpr int64_t kRmsNormParts = 32;
constexpr int64_t rms_norm_scratch(int64_t dim) { return kRmsNormParts * dim; }

}  // namespace titan::kernels
