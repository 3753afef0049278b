#pragma once

#include "worker/rank/kernels/level.h"

namespace titan::kernels::bench {

// What one core does at a level when nothing waits for anything, measured once: fp32 multiply-adds in registers, or
// products of bf16 tiles.
double peak_gflops(Level level);

}  // namespace titan::kernels::bench
