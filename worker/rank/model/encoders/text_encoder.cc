#include "worker/rank/model/encoders/text_encoder.h"

#include <c10/util/Exception.h>

#include <utility>

namespace titan::encoders {

at::Tensor EncoderBlock::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const at::NoGradGuard no_grad;
  EncoderCall call{.ids = context.tokens, .position_bias = {}};
  return run(input, call);
}

TextEncoder::TextEncoder(std::vector<std::unique_ptr<EncoderBlock>> blocks, WeightNames names)
    : blocks_(std::move(blocks)), names_(std::move(names)) {}

at::Tensor TextEncoder::encode(const at::Tensor& ids, const BlockHooks& hooks) const {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && ids.size(1) > 0, names_.model,
              ": needs int64 ids [B, T], got ", ids.scalar_type(), " ", ids.sizes());
  const at::NoGradGuard no_grad;
  EncoderCall call{.ids = ids, .position_bias = {}};
  at::Tensor x = ids;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (hooks.before) hooks.before(i);
    x = blocks_[i]->run(x, call);
    if (hooks.after) hooks.after(i);
  }
  return x;
}

std::vector<nn::Parameter*> TextEncoder::parameters() const {
  std::vector<nn::Parameter*> all;
  for (const auto& block : blocks_) {
    for (nn::Parameter& parameter : block->parameters()) all.push_back(&parameter);
  }
  return all;
}

}  // namespace titan::encoders
