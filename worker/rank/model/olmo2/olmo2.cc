#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/families.h"

// OLMo 2 (arXiv 2501.00656): norms of what attention and feed-forward add, and of all queries and all keys of a token.
namespace titan::model::olmo2 {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  return build_decoder(spec, options, common_inits(spec));
}

}  // namespace titan::model::olmo2
