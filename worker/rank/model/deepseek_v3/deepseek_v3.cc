#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// DeepSeek V3 (arXiv 2412.19437): latent attention, YaRN beyond the original context, experts in groups after some
// dense layers.
namespace titan::model::deepseek_v3 {

// The final norm has the epsilon of the other norms, as in the published model. torchtitan uses LibTorch's default, the
// machine epsilon of the activations' type.
absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::deepseek_v3
