#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// SmolLM 3: every fourth layer has no positions, and the head is tied to the embedding.
namespace titan::model::smollm3 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::smollm3
