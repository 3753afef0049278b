#pragma once

// Chooses which blocks' passes become device graphs (block_graphs.h).

#include <vector>

#include "common/plan/mesh/mesh.h"
#include "worker/rank/device/device.h"
#include "worker/rank/runtime/engine/sharding_options.h"
#include "worker/rank/runtime/engine/stage.h"

namespace titan::runtime {

// Returns whether any block's passes can become a graph. If graphs are wanted and the device has them, reports why not.
bool can_use_graphs(const ShardingOptions& options, const mesh::Mesh& mesh, device::Device& device);

// Marks the blocks and gives their weights fixed addresses.
void choose_graphs(std::vector<std::vector<EngineBlock>>& stages, const GraphOptions& graphs, at::Device device);

}  // namespace titan::runtime
