#pragma once

// Presents a rank's part of a model as slices for checkpoints.

#include <vector>

#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::runtime {

// Returns the trained weights and, if `optimizer` is not null, its states for them. Their writing is distributed over
// the replicas.
std::vector<checkpoint::Slice> trained_slices(const std::vector<parallel::ShardedParameter*>& trained,
                                              optim::Optimizer* optimizer, const comm::Group& replicas);
// Returns the frozen parameters. A packed one accepts plain values and packs them.
std::vector<checkpoint::Slice> frozen_slices(const std::vector<parallel::ShardedParameter*>& parameters);
// Returns the buffers of the blocks.
std::vector<checkpoint::Slice> buffer_slices(const std::vector<nn::Block*>& blocks, const comm::DeviceMesh& mesh);

}  // namespace titan::runtime
