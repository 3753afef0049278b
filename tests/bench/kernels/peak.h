#pragma once

#include "worker/rank/kernels/level.h"

namespace titan::kernels::bench {

// Returns the GFLOP/s of one core at a level when no instruction waits for another, measured once: fp32 multiply-adds
// in registers, or products of bf16 tiles.
double peak_gflops(Level level);

}  // namespace titan::kernels::bench
