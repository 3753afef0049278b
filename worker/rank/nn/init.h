#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/rank/nn/block.h"

namespace titan::nn {

// Writes elements [begin, end) of the parameter's initial value (row-major order of its global shape) to `out`, [...]
// of end - begin elements, contiguous, of any floating type, on the CPU. The values are fp32 numbers keyed by (seed,
// FQN, global element index), with the same bits for any slicing, sharding and number of threads.
void fill(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t end, const at::Tensor& out);

// The same for a box of the whole parameter: `out` [...] (contiguous, on the CPU) is the part that starts at `offset`.
void fill_box(const Parameter& parameter, uint64_t seed, const std::vector<int64_t>& offset, const at::Tensor& out);

}  // namespace titan::nn
