#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Mixtral (arXiv 2401.04088): Mistral with a softmax over the scores of the chosen experts, which is the softmax over
// all experts, normalized again.
namespace titan::model::mixtral {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::mixtral
