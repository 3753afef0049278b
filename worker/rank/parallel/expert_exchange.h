#pragma once

#include <cstdint>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/nn/moe.h"

namespace titan::parallel {

// Sends every row to the rank of `group` that has its expert, runs the experts there and brings the outputs back. While
// the rows are on their way, `meanwhile` runs; in the backward pass their gradients' way back overlaps its backward
// pass. The group must outlive the graph.
nn::MixtureOfExperts::Dispatch exchange_tokens(const comm::Group& group);

// The rows that arrive from all ranks, [rank][expert] one after the other, in the order [expert][rank], and back.
struct Regrouping {
  std::vector<int64_t> rows;  // Of each local expert, from all ranks.
  at::Tensor counts;          // The same, int64 on the device.
  at::Tensor order;           // int64 [sum]: where each regrouped row came from; undefined: nothing moves.
  at::Tensor inverse;
};
// received[rank * experts + expert] rows each, and the same numbers `there`, int64 on the rows' device, which makes the
// orders of them: nothing is copied to it, and nothing waits for it.
Regrouping regroup(const std::vector<int64_t>& received, const at::Tensor& there, int ranks);

}  // namespace titan::parallel
