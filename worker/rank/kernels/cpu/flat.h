#pragma once

// Computes over flat buffers: casts between types, sums of squares, and steps of Adam.

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Copies a matrix [rows, width] into another type or layout; strides in elements from row to row. fp32 becomes the
// nearest bf16, ties to even; everything else is exact, denormals too. The two matrices do not overlap.
struct CastRows {
  int64_t rows = 1, width = 0;
  const void* from = nullptr;
  Dtype from_type = Dtype::kF32;
  int64_t from_stride = 0;
  void* to = nullptr;
  Dtype to_type = Dtype::kF32;
  int64_t to_stride = 0;
  int threads = 1;
};
bool cast_rows(Level level, const CastRows& args);

// *result = the sum of the squares of `count` numbers, in fp64. The values are cut in 64 parts whatever the threads, so
// the bits depend on the level and the numbers alone. Within 1e-14 of the truth, but fp32 denormals count as zero.
struct SquaredNorm {
  int64_t count = 0;
  const void* values = nullptr;
  Dtype type = Dtype::kF32;
  double* result = nullptr;
  int threads = 1;
};
bool squared_norm(Level level, const SquaredNorm& args);

// One step of Adam (L2 decay is added to the gradient) or AdamW (decoupled: the value shrinks by learning_rate *
// weight_decay first) over `count` numbers, each by itself: the bits do not depend on how a parameter is cut. With
// g = gradient * *gradient_factor:
//   average += (1 - beta1) (g - average);  square = beta2 square + (1 - beta2) g g
//   value -= learning_rate / correction1 * average / (sqrt(square) / sqrt(correction2) + eps)
// where correctionN = 1 - betaN^step. Every operation is rounded to fp32 once; denormals count as zero. Each result is
// within 1e-6 of fp64's relative to the larger of what is added there.
struct Adam {
  int64_t count = 0;
  float* value = nullptr;
  const void* gradient = nullptr;
  Dtype gradient_type = Dtype::kF32;
  float* average = nullptr;
  float* square = nullptr;
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double correction1 = 1, correction2 = 1;
  bool decoupled = true;
  const float* gradient_factor = nullptr;  // Null: 1. Read from memory, as is `skip`: the step before wrote them there.
  const bool* skip = nullptr;              // Not null and true: nothing is touched.
  int threads = 1;
};
bool adam(Level level, const Adam& args);

}  // namespace titan::kernels
