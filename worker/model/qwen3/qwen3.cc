#include "worker/model/qwen3/qwen3.h"

#include "worker/model/decoder/inits.h"

namespace titan::model::qwen3 {

// A tied embedding is drawn as the head: torchtitan writes the shared matrix twice, and the head's values come last.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::qwen3
