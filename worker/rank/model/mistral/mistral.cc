#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Mistral 7B (arXiv 2310.06825) and its larger dense successors: every layer has a sliding window, or none has.
namespace titan::model::mistral {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::mistral
