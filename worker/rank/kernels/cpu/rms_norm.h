#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Root-mean-square norm (Zhang and Sennrich, arXiv 1910.07467) of rows [rows, dim]; strides in elements from row to
// row, the elements of a row side by side. Statistics are fp32, and whatever is written is rounded once. The bits do
// not depend on the threads. Declined: dim 0.
namespace titan::kernels {

// y = s / sqrt(mean(s s) + eps) * weight, where s is x, or with a residual x + residual, rounded to the type and
// written to `sum` (which may be x or the residual). Within 1e-6 of the truth beside the rounding, while mean(s s) is
// finite.
struct RmsNormForward {
  int64_t rows = 0, dim = 0;
  Dtype type = Dtype::kBf16;  // Of x, residual, sum, weight, y.
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* residual = nullptr;  // Null: none, and no sum.
  int64_t residual_stride = 0;
  void* sum = nullptr;
  int64_t sum_stride = 0;
  const void* weight = nullptr;  // [dim]; null: ones.
  void* y = nullptr;             // May be x when there is no residual.
  int64_t y_stride = 0;
  float* inverse_rms = nullptr;  // [rows], which backward needs; null: not kept.
  double eps = 0;
  int threads = 1;
};
bool rms_norm_forward(Level level, const RmsNormForward& args);

// With n = x inverse_rms and g = dy weight: dx = (g - n mean(n g)) inverse_rms + also, dweight = sum over rows of dy n.
// Where forward had a residual, x is its sum, `also` the gradient that reaches the sum past the norm, and dx that of
// both summands. dx is within 2e-6 of the truth, relative to inverse_rms times the row's largest |g|, beside the
// rounding. dweight sums 32 fixed parts of the rows, each in fp32: within 1e-5 of the sum of the magnitudes.
struct RmsNormBackward {
  int64_t rows = 0, dim = 0;
  Dtype type = Dtype::kBf16;  // Of x, dy, weight, also, dx.
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* dy = nullptr;
  int64_t dy_stride = 0;
  const void* weight = nullptr;  // As in forward.
  const float* inverse_rms = nullptr;
  const void* also = nullptr;  // Null: nothing is added.
  int64_t also_stride = 0;
  void* dx = nullptr;  // May be x, dy or also.
  int64_t dx_stride = 0;
  void* dweight = nullptr;  // [dim]; null: not wanted.
  Dtype dweight_type = Dtype::kF32;
  float* scratch = nullptr;  // rms_norm_scratch(dim) floats when dweight is wanted.
  int threads = 1;
};
bool rms_norm_backward(Level level, const RmsNormBackward& args);

constexpr int64_t kRmsNormParts = 32;
constexpr int64_t rms_norm_scratch(int64_t dim) { return kRmsNormParts * dim; }

}  // namespace titan::kernels
