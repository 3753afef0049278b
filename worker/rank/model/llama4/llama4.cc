#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Llama 4: Llama's attention, with experts in every or every second layer. In the iRoPE flavors every fourth layer has
// no positions and the others attend within fixed blocks.
namespace titan::model::llama4 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::llama4
