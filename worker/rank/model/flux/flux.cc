#include "worker/rank/model/flux/flux.h"

#include "worker/rank/model/flux/blocks.h"

namespace titan::model::flux {

absl::StatusOr<Blocks> build_blocks(const models::FluxSpec& spec) {
  if (absl::Status bad = models::check(spec); !bad.ok()) return bad;
  Blocks blocks;
  blocks.push_back(std::make_unique<Embed>(spec));
  for (int64_t i = 0; i < spec.n_double_blocks; ++i) blocks.push_back(std::make_unique<DoubleBlock>(spec, i));
  for (int64_t i = 0; i < spec.n_single_blocks; ++i) blocks.push_back(std::make_unique<SingleBlock>(spec, i));
  blocks.push_back(std::make_unique<FinalLayer>(spec));
  return blocks;
}

}  // namespace titan::model::flux
