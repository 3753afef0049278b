#include "worker/nn/attention_core.h"

#include <c10/util/Exception.h>

namespace titan::nn {

at::Tensor attend(const AttentionInput& input, const MicrobatchContext&) {
  TORCH_CHECK(input.mask.plain() && !input.sinks.defined(), "attention: only the plain causal mask");
  const bool grouped = input.q.size(1) != input.k.size(1);
  return at::scaled_dot_product_attention(input.q, input.k, input.v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                          /*is_causal=*/true, input.scale, grouped);
}

}  // namespace titan::nn
