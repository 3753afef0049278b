#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace titan::comm {

// Returns whether combine() supports the reduction on this type: SUM, MAX and MIN of types that LibTorch adds and
// compares.
bool can_combine(c10d::ReduceOp::RedOpType operation, at::ScalarType type);

// Computes out [count] = parts[0] op parts[1] op ..., each [count] elements of `type` in memory, in this order, so
// ranks with the same parts get the same bits. Each addition rounds to `type`, as between threads, over sockets and in
// asynchronous tensor parallelism: all of them give the same bits. `out` may be one of the parts. There must be at
// least two parts.
void combine(const std::vector<const std::byte*>& parts, std::byte* out, int64_t count, at::ScalarType type,
             c10d::ReduceOp::RedOpType operation);

}  // namespace titan::comm
