#pragma once

#include <string>

#include "worker/comm/group.h"
#include "worker/nn/attention_core.h"
#include "worker/nn/block.h"

// Context parallelism: every rank of the group holds a share of each row's tokens; attention exchanges keys and values.
namespace titan::parallel {

struct ContextParallel {
  const comm::Group* group = nullptr;  // Must outlive the model.
  bool balance = true;  // Head-tail: the row is cut in 2 * size chunks, rank r has chunks r and 2 * size - 1 - r.
  std::string rotate = "allgather";  // Or "alltoall": keys and values go around a ring.
};

// The attention over all ranks' keys, exact in forward and backward, for AttentionInput of the local tokens.
nn::AttentionCore context_parallel_attention(const ContextParallel& context);

// This rank's share of a whole-row microbatch: tokens, labels, positions [T / size]; documents stay whole.
nn::MicrobatchContext take_share(const nn::MicrobatchContext& whole, const ContextParallel& context);

}  // namespace titan::parallel
