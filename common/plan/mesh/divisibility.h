#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/plan/mesh/mesh.h"

namespace titan::mesh {

// The sizes of a model and its batch that the mesh has to divide. 0: does not apply; no heads: the model is not known.
struct Sizes {
  int64_t seq_len = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // 0 also for latent attention, whose keys are shared by all heads.
  int64_t vocab_size = 0;
  int64_t ffn_hidden = 0;  // Channels of a dense feed-forward.
  int64_t num_experts = 0;
  int64_t expert_hidden = 0;            // Channels of one routed expert.
  int64_t shared_hidden = 0;            // Channels of the shared experts together.
  int64_t rows = 0;                     // Sequences of a microbatch.
  int64_t chunks_per_context_rank = 2;  // Head-tail balance gives each an early and a late one; 1 without.
  bool sequence_parallel = true;
};

// Whether the mesh can split these sizes. Errors: InvalidArgument, names the key, both numbers, and which values would
// do.
absl::Status check_divisible(const Mesh& mesh, const Sizes& sizes);

}  // namespace titan::mesh
