#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Qwen 3 (arXiv 2505.09388), dense and with experts: queries and keys are normed per head before halves of them are
// rotated; small sizes read the embedding as their head.
namespace titan::model::qwen3 {

// A tied embedding is drawn as the head: torchtitan writes the shared matrix twice, and the head's values come last.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::qwen3
