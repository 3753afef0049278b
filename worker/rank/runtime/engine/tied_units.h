#pragma once

// Handles parameters that several blocks read, such as a head that is tied to the embedding.

#include <vector>

#include "absl/status/status.h"
#include "worker/rank/runtime/engine/shard_units.h"
#include "worker/rank/runtime/engine/stage.h"

namespace titan::runtime {

struct TiedUnits {
  std::vector<parallel::ShardUnit*> units;  // Units that both the pipeline's first and last rank hold.
  int peer = 0;                             // The other of these ranks, as an index on mesh::Axis::kPipeline.
};

// Checks which parameters are shared. In a pipeline only its two ends can share parameters: the two ranks add their
// gradients. Unimplemented: any other parameter is shared.
absl::Status check_shared(const model::Model& model, bool pipelined);

// Makes units available to blocks that read another block's parameters. If both blocks are on this rank, they share a
// unit, which reduces both blocks' gradients together. Otherwise this rank holds a copy of the unit, and the two ranks
// add their gradients.
TiedUnits add_tied_units(const UnitContext& context, mesh::Reshard keep, Units& all,
                         std::vector<std::vector<EngineBlock>>& stages);

// Adds the gradients of the pipeline's two ends. Collective.
void sum_tied(const TiedUnits& tied, const comm::DeviceMesh& mesh, at::Device device);

}  // namespace titan::runtime
