#pragma once

// Shows a rank's part of a model to checkpoints.

#include <vector>

#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::runtime {

// The weights that are trained, and the optimizer's states of them when it is given; they are spread over the replicas.
std::vector<checkpoint::Slice> trained_slices(const std::vector<parallel::ShardedParameter*>& trained,
                                              optim::Optimizer* optimizer, const comm::Group& replicas);
// The parameters that are frozen; a packed one takes numbers and packs them.
std::vector<checkpoint::Slice> frozen_slices(const std::vector<parallel::ShardedParameter*>& parameters);
// The blocks' buffers.
std::vector<checkpoint::Slice> buffer_slices(const std::vector<nn::Block*>& blocks, const comm::DeviceMesh& mesh);

}  // namespace titan::runtime
