#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/plan/models/adapters.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/models/pareto.h"

namespace titan::models {

// One microbatch on one rank.
struct ActivationShape {
  int64_t tokens = 0;  // Rows times what context parallelism leaves of their length.
  int64_t tensor_ranks = 1;
  bool sequence_parallel = true;
  bool loss_parallel = true;        // Logits stay cut over the tensor ranks.
  int64_t expert_tensor_ranks = 1;  // Ranks that share an expert's matrices: tensor_ranks without expert parallelism.
  bool experts_elsewhere = false;   // Expert parallelism: rows travel to their experts and back.
  int64_t gathered_ranks = 0;       // Expert ranks whose tokens are all gathered instead; 0: they are not.
  int64_t keys = 0;                 // Tokens of a whole row: what attention's work is counted with.
  int64_t element_bytes = 2;        // Of what layers compute in.
  int64_t most_logit_bytes = 0;     // Logits beyond are never all there; 0: they are.
  bool fused_norms = true;  // A norm keeps one number a token (CUDA), not its values as well (LibTorch on CPUs).
  std::optional<AdapterSpec> adapters;  // Whose products a memory budget chooses from too.
};

// Bytes of one block that wait for the backward pass.
struct BlockActivations {
  int64_t input = 0;             // The block's own input, kept however much is recomputed.
  int64_t graph = 0;             // The rest, when nothing is recomputed.
  int64_t by_operation = 0;      // What is left of the rest by recomputation per operation.
  std::vector<KeepItem> costly;  // What a memory budget chooses from (worker/rank/parallel/keep_policy.h).
};

// Tokens of a microbatch that a rank routes.
int64_t routed_tokens(const ActivationShape& shape);
// Rows of its experts that there is room for: those of an even load, or all that can come.
int64_t expert_rows(const MoeSpec& moe, const ActivationShape& shape);

// Of a rank's columns of the vocabulary, those whose logits are there at a time (common/plan/models/logits.h).
int64_t columns_at_once(const ModelSpec& spec, const ActivationShape& shape);

// An estimate for each block of the engine: tok_embeddings, layers, output (final norm, head and loss). Rows are taken
// to be dealt evenly over experts or, gathered, to fill their room, and attention to write no scores down. Left out:
// buffers of transfers, what lives inside one operation or one block's backward pass only.
std::vector<BlockActivations> block_activations(const ModelSpec& spec, const ActivationShape& shape);

}  // namespace titan::models
