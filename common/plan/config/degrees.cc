#include "common/plan/config/mesh.h"

namespace titan::config {

mesh::Degrees degrees_of(const Parallelism& p) {
  return {.pp = p.pipeline_parallel_degree,
          .dp_replicate = p.data_parallel_replicate_degree,
          .dp_shard = p.data_parallel_shard_degree,
          .cp = p.context_parallel_degree,
          .tp = p.tensor_parallel_degree,
          .ep = p.expert_parallel_degree,
          .etp = p.expert_tensor_parallel_degree};
}

}  // namespace titan::config
