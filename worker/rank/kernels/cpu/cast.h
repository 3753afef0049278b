#pragma once

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

}  // namespace titan::kernels
