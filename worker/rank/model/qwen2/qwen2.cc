#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Qwen 2 and 2.5 (arXiv 2407.10671, 2412.15115): queries, keys and values have a bias. Small sizes tie the head to the
// embedding.
namespace titan::model::qwen2 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::qwen2
