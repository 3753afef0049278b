#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Gemma 3's language model (arXiv 2503.19786): Gemma 2's norms, normalized queries and keys, and windows in all but
// every sixth layer, whose RoPE has a separate theta.
namespace titan::model::gemma3 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::gemma3
