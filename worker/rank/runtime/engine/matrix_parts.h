#pragma once

#include <vector>

#include "common/plan/mesh/mesh.h"
#include "worker/rank/optim/muon_plan.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::runtime {

// What each rank of mesh::Axis::kHolders has of these parameters' matrices, as every rank finds it from its own part
// alone: the tensor and expert axes cut evenly, FSDP as torch.chunk does. Empty for what is no matrix and no stack of
// experts' matrices. `rank` is this one, in the world.
std::vector<optim::MatrixParameter> matrix_parameters(const std::vector<parallel::ShardedParameter*>& parameters,
                                                      const mesh::Mesh& mesh, int rank);

}  // namespace titan::runtime
