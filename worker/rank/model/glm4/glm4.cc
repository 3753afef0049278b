#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// GLM-4-0414: norms before and after attention and feed-forward; RoPE rotates neighbouring channels of half of each
// head.
namespace titan::model::glm4 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::glm4
