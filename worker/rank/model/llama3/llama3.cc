#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// Llama 3 (arXiv 2407.21783): grouped-query attention; RoPE rotates neighbouring pairs and stretches low frequencies.
namespace titan::model::llama3 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::llama3
