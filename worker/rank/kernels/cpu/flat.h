#pragma once

// Computes over flat buffers: casts between types, sums of squares, and steps of Adam.

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

// Copies a matrix [rows, width] to another type or layout. Strides are in elements from row to row. fp32 becomes the
// nearest bf16, ties to even. Everything else is exact, denormals too. The two matrices must not overlap.
struct CastRows {
  int64_t rows = 1, width = 0;
  const void* from = nullptr;  // [rows, width]
  Dtype from_type = Dtype::kF32;
  int64_t from_stride = 0;
  void* to = nullptr;  // [rows, width]
  Dtype to_type = Dtype::kF32;
  int64_t to_stride = 0;
  int threads = 1;
};
bool cast_rows(Level level, const CastRows& args);

// *result = the sum of the squares of `count` numbers, in fp64. The numbers are cut in 64 parts for any number of
// threads, so the bits depend only on the level and the numbers. The error is at most 1e-14, but fp32 denormals count
// as zero.
struct SquaredNorm {
  int64_t count = 0;
  const void* values = nullptr;  // [count]
  Dtype type = Dtype::kF32;
  double* result = nullptr;  // [1]
  int threads = 1;
};
bool squared_norm(Level level, const SquaredNorm& args);

// One step of Adam (L2 decay is added to the gradient) or AdamW (decoupled: the value first shrinks by learning_rate *
// weight_decay) over `count` numbers, each independently: the bits do not depend on how a parameter is cut. With
// g = gradient * *gradient_factor:
//   average += (1 - beta1) (g - average);  square = beta2 square + (1 - beta2) g g
//   value -= learning_rate / correction1 * average / (sqrt(square) / sqrt(correction2) + eps)
// where correctionN = 1 - betaN^step. Every operation is rounded to fp32 once, and denormals count as zero. The error
// of each result against fp64 is at most 1e-6 of the larger of what is added there.
struct Adam {
  int64_t count = 0;
  float* value = nullptr;          // [count]
  const void* gradient = nullptr;  // [count]
  Dtype gradient_type = Dtype::kF32;
  float* average = nullptr;  // [count]
  float* square = nullptr;   // [count]
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double correction1 = 1, correction2 = 1;
  bool decoupled = true;
  // [1]. Null: 1. Read from memory, like `skip`, because the work before this step writes both there.
  const float* gradient_factor = nullptr;
  const bool* skip = nullptr;  // [1]. Not null and true: nothing is changed.
  int threads = 1;
};
bool adam(Level level, const Adam& args);

}  // namespace titan::kernels
