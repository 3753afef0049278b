#pragma once

#include "tests/numerics/mesh_table/rank_share.h"

namespace titan::testing {

// Bytes that one block holds for one microbatch until its backward pass: its input, and the tensors that the gradient
// of its equations needs, or those that selective checkpointing saves.
int64_t bytes_for_backward(const RankShare& share, const std::string& block, int64_t microbatch);

// Bytes that one block holds between the two halves of a split backward pass: both factors of each weight gradient (the
// product's input and the gradient of its output), and the weight gradients that the first half already computed.
int64_t bytes_for_weights(const RankShare& share, const std::string& block, int64_t microbatch);

}  // namespace titan::testing
