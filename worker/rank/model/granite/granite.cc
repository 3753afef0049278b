#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Granite 3: embeddings, scores, what layers add and logits are multiplied by constants.
namespace titan::model::granite {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::granite
