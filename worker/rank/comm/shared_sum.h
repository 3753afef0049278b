#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace titan::comm {

// Whether combine() knows the operation on the type: SUM, MAX and MIN of whatever LibTorch adds and compares.
bool can_combine(c10d::ReduceOp::RedOpType operation, at::ScalarType type);

// out [count] = parts[0] op parts[1] op …, each [count] of `type` somewhere in memory, in this order: every rank that
// has the same parts gets the same bits. Each addition rounds to `type`, as between threads, over sockets and where
// asynchronous tensor parallelism adds pieces itself: all of them have the same bits. `out` may be one of the parts,
// which must be two at least.
void combine(const std::vector<const std::byte*>& parts, std::byte* out, int64_t count, at::ScalarType type,
             c10d::ReduceOp::RedOpType operation);

}  // namespace titan::comm
