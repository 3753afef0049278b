#include "worker/model/llama4/llama4.h"

#include "worker/model/decoder/inits.h"

namespace titan::model::llama4 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::llama4
