#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Gemma 2 (arXiv 2408.00118): norms before and after attention and feed-forward, capped scores and logits, and a
// sliding window in every other layer.
namespace titan::model::gemma2 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::gemma2
