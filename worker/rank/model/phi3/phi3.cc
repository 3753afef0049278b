#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Phi 3 and 4 (arXiv 2404.14219, 2412.08905): a decoder like Llama's, with fused projections in Hugging Face weights.
namespace titan::model::phi3 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::phi3
