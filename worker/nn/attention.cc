#include "worker/nn/attention.h"

#include <utility>

namespace titan::nn {

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const bool grouped = q.size(1) != k.size(1);
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true,
                                          /*scale=*/std::nullopt, grouped);
}

Attention::Attention(const Declare& declare, const std::string& fqn, const AttentionOptions& options,
                     std::shared_ptr<Rope> rope)
    : wq(declare, fqn + ".wq.weight", options.dim, options.heads * options.head_dim, options.in_init),
      wk(declare, fqn + ".wk.weight", options.dim, options.kv_heads * options.head_dim, options.in_init),
      wv(declare, fqn + ".wv.weight", options.dim, options.kv_heads * options.head_dim, options.in_init),
      wo(declare, fqn + ".wo.weight", options.heads * options.head_dim, options.dim, options.out_init),
      head_dim_(options.head_dim),
      rope_(std::move(rope)) {}

// [B, T, H * D] -> [B, T, H, D]; the number of heads follows from the size, because a mesh may own only some of them.
at::Tensor Attention::split_heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1), x.size(2) / head_dim_, head_dim_});
}

at::Tensor Attention::forward(const at::Tensor& input) const {
  const at::Tensor x = through(seams.input, input);
  const at::Tensor q = rope_->apply(split_heads(wq.forward(x)));
  const at::Tensor k = rope_->apply(split_heads(wk.forward(x)));
  const at::Tensor v = split_heads(wv.forward(x));
  const at::Tensor mixed = core(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2));  // [B, H, T, D]
  const at::Tensor joined = mixed.transpose(1, 2).contiguous().view({x.size(0), x.size(1), -1});
  return through(seams.output, wo.forward(joined));
}

}  // namespace titan::nn
