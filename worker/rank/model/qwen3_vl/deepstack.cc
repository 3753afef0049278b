#include "worker/rank/model/qwen3_vl/deepstack.h"

#include <c10/util/Exception.h>

namespace titan::model::qwen3_vl {

DeepstackLayer::DeepstackLayer(const models::ModelSpec& text, int64_t index, const LayerInits& inits, int64_t seq_len)
    : DecoderLayer(text, index, inits, seq_len, /*rope=*/nullptr), dim_(text.dim) {}

at::Tensor DeepstackLayer::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  const int64_t left = input.size(2) - 2 * dim_;
  TORCH_CHECK(left >= 0, name(), ": got ", input.sizes(), " without features of the vision tower");
  const at::Tensor x = DecoderLayer::forward(input.narrow(2, 0, dim_).contiguous(), context);
  const at::Tensor sum = x + input.narrow(2, dim_, dim_);
  return left == 0 ? sum : at::cat({sum, input.narrow(2, 2 * dim_, left)}, 2);
}

}  // namespace titan::model::qwen3_vl
