#pragma once

#include <ATen/ATen.h>

namespace titan::nn {

// FLOP/s of matrix products of `type` as layers compute them on a CPU: the best of some that take about a millisecond
// of one thread's own time, times the threads of this thread's products. Takes about 10 ms, or two products of
// 128 x 256 x 256 where these are slower.
double product_speed(at::ScalarType type);

}  // namespace titan::nn
