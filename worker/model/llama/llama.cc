#include "worker/model/llama/llama.h"

#include "worker/model/decoder/inits.h"

namespace titan::model::llama {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::llama
