#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Qwen 3 (arXiv 2505.09388), dense and with experts: queries and keys are normalized per head before RoPE rotates their
// halves. Small sizes tie the head to the embedding.
namespace titan::model::qwen3 {

// A tied embedding is drawn like the head: torchtitan initializes the shared matrix twice, and the head's values
// remain.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::qwen3
