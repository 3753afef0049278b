#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace titan::optim {

// Where the elements of rows lie in a whole parameter: element [row, column] is number first + row * stride + column.
struct Place {
  int64_t first = 0, stride = 0;
};

// Each number of `exact`, float32 [rows, columns], as one of the two bf16 that it lies between, each as often as it is
// near to the other; what is not finite as the nearest. Chance is the upper half of a word of Philox-4x32-10 that
// depends on the key, the step (a scalar, where `exact` is) and the number's place alone; the same bits as
// worker/rank/kernels/cpu/small_adam.h.
at::Tensor round_by_chance(const at::Tensor& exact, uint64_t key, const at::Tensor& step, const Place& place);

}  // namespace titan::optim
