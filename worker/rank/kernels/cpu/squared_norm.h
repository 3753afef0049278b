#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

namespace titan::kernels {

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

}  // namespace titan::kernels
