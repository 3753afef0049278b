#pragma once

// Estimates how many bytes of activations each block of a model keeps for the backward pass, and how many columns of
// logits are computed at a time when their memory is limited.

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
  int64_t tokens = 0;  // Rows times the part of their length that context parallelism leaves to the rank.
  int64_t tensor_ranks = 1;
  bool sequence_parallel = true;
  bool loss_parallel = true;        // Logits stay split over the tensor ranks.
  int64_t expert_tensor_ranks = 1;  // Ranks that share an expert's matrices; tensor_ranks without expert parallelism.
  bool experts_elsewhere = false;   // Expert parallelism: rows are sent to their experts and back.
  int64_t gathered_ranks = 0;       // Number of expert ranks whose tokens are all gathered instead; 0: they are not.
  int64_t keys = 0;                 // Tokens of a whole row, which determine attention's FLOPs.
  int64_t element_bytes = 2;        // Bytes of the type in which layers compute.
  int64_t max_logit_bytes = 0;      // Above this, only a part of the logits exists at a time; 0: no limit.
  bool fused_norms = true;  // A norm keeps only one number per token (CUDA), not also its values (LibTorch on CPUs).
  std::optional<AdapterSpec> adapters;  // A memory budget chooses from their products, too.
};

// Bytes of one block that are kept for the backward pass.
struct BlockActivations {
  int64_t input = 0;                 // The block's input, kept regardless of recomputation.
  int64_t graph = 0;                 // The rest, when nothing is recomputed.
  int64_t by_operation = 0;          // The part of `graph` that recomputation per operation keeps.
  std::vector<KnapsackItem> costly;  // Candidates of a memory budget (worker/rank/parallel/activation_checkpoint.h).
};

// Returns the number of tokens of a microbatch that a rank routes.
int64_t routed_tokens(const ActivationShape& shape);
// Returns the number of rows that a rank's experts receive: those of an even load, or with gathered tokens the most
// that can come.
int64_t expert_rows(const MoeSpec& moe, const ActivationShape& shape);

// Returns the number of a rank's vocabulary columns whose logits exist at a time, from logit_columns().
int64_t columns_at_once(const ModelSpec& spec, const ActivationShape& shape);

// Returns an estimate for each block of the engine: tok_embeddings, layers, output (final norm, head and loss). Assumes
// evenly routed rows or, with gathered tokens, full capacity, and attention that stores no scores. Excludes transfer
// buffers and tensors that exist only inside one operation or one block's backward pass.
std::vector<BlockActivations> block_activations(const ModelSpec& spec, const ActivationShape& shape);

// Returns how many columns of a head's logits [tokens, columns] to compute at a time so that at most `max_bytes` of
// them exist; 0: no limit. Parts have equal size except the last, in multiples of 64 columns and so at least 64.
inline int64_t logit_columns(int64_t tokens, int64_t columns, int64_t element_bytes, int64_t max_bytes) {
  constexpr int64_t kMultiple = 64;
  const int64_t column = tokens * element_bytes;
  if (max_bytes == 0 || columns * column <= max_bytes) return columns;
  const int64_t most = std::max(max_bytes / column / kMultiple * kMultiple, kMultiple);
  const int64_t parts = (columns + most - 1) / most;
  const int64_t even = (columns + parts - 1) / parts;
  return std::min(columns, (even + kMultiple - 1) / kMultiple * kMultiple);
}

}  // namespace titan::models
