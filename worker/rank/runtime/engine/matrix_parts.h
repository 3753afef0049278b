#pragma once

#include <vector>

#include "common/plan/mesh/mesh.h"
#include "worker/rank/optim/muon_plan.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::runtime {

// Returns the parts of these parameters' matrices that each rank of mesh::Axis::kHolders holds. Every rank derives them
// from its own part only: the tensor and expert axes split evenly, FSDP like torch.chunk. The entry is empty unless the
// parameter is a matrix or a stack of experts' matrices. `rank`: this rank in the world.
std::vector<optim::MatrixParameter> matrix_parameters(const std::vector<parallel::ShardedParameter*>& parameters,
                                                      const mesh::Mesh& mesh, int rank);

}  // namespace titan::runtime
