#pragma once

// Estimates how many bytes of activations each block of a model keeps for the backward pass, and computes how many
// columns of logits are there at a time when their memory is limited.

#include <algorithm>
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
  std::vector<KeepItem> costly;  // What a memory budget chooses from (worker/rank/parallel/activation_checkpoint.h).
};

// Tokens of a microbatch that a rank routes.
int64_t routed_tokens(const ActivationShape& shape);
// Rows of its experts that there is room for: those of an even load, or all that can come.
int64_t expert_rows(const MoeSpec& moe, const ActivationShape& shape);

// How many of a rank's columns of the vocabulary have their logits there at a time, by logit_columns().
int64_t columns_at_once(const ModelSpec& spec, const ActivationShape& shape);

// An estimate for each block of the engine: tok_embeddings, layers, output (final norm, head and loss). Rows are taken
// to be dealt evenly over experts or, gathered, to fill their room, and attention to write no scores down. Left out:
// buffers of transfers, what lives inside one operation or one block's backward pass only.
std::vector<BlockActivations> block_activations(const ModelSpec& spec, const ActivationShape& shape);

// How many columns of a head's logits [tokens, columns] are computed at a time so that no more than `most_bytes` of
// them exist; 0 bytes: all. Parts are alike but for the last, and multiples of 64, and so at least 64, columns.
inline int64_t logit_columns(int64_t tokens, int64_t columns, int64_t element_bytes, int64_t most_bytes) {
  constexpr int64_t kMultiple = 64;
  const int64_t column = tokens * element_bytes;
  if (most_bytes == 0 || columns * column <= most_bytes) return columns;
  const int64_t most = std::max(most_bytes / column / kMultiple * kMultiple, kMultiple);
  const int64_t parts = (columns + most - 1) / most;
  const int64_t even = (columns + parts - 1) / parts;
  return std::min(columns, (even + kMultiple - 1) / kMultiple * kMultiple);
}

}  // namespace titan::models
