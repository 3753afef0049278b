#pragma once

// Shares parameters that several blocks read, as a head that is tied to the embedding.

#include <vector>

#include "absl/status/status.h"
#include "worker/rank/runtime/engine/shard_units.h"
#include "worker/rank/runtime/engine/stage.h"

namespace titan::runtime {

struct TiedUnits {
  std::vector<parallel::ShardUnit*> units;  // Parameters that the pipeline's first and last rank both hold.
  int peer = 0;
};

// Over a pipeline only its two ends can share parameters: two ranks add the gradients of both. Errors: Unimplemented
// for what else is shared.
absl::Status check_shared(const model::Model& model, bool pipelined);

// A block may read parameters that another declared. Where both are here they share a unit, whose gradients of both are
// reduced together; else this rank holds a copy of the unit, and the two ranks add their gradients.
TiedUnits add_tied_units(const UnitContext& context, mesh::Reshard keep, Units& all,
                         std::vector<std::vector<EngineBlock>>& stages);

// Adds the gradients of the pipeline's two ends. Collective.
void sum_tied(const TiedUnits& tied, const comm::DeviceMesh& mesh, at::Device device);

}  // namespace titan::runtime
