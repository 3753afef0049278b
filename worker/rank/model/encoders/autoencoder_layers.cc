#include "worker/rank/model/encoders/autoencoder_layers.h"

namespace titan::encoders {
namespace {

at::Tensor normed_swish(const GroupNorm& norm, const at::Tensor& x) {
  at::Tensor normed = norm.forward(x);
  return at::silu_(normed);
}

// [B, C, h, w] -> [B, 1, h w, C]
at::Tensor as_tokens(const at::Tensor& x) { return x.flatten(2).transpose(1, 2).unsqueeze(1).contiguous(); }

}  // namespace

ResnetBlock::ResnetBlock(const nn::Declare& declare, const std::string& fqn, int64_t in_channels, int64_t out_channels,
                         int64_t groups)
    : norm1_(declare, fqn + ".norm1", in_channels, groups, kGroupNormEps),
      conv1_(declare, fqn + ".conv1", in_channels, out_channels, 3, 1),
      norm2_(declare, fqn + ".norm2", out_channels, groups, kGroupNormEps),
      conv2_(declare, fqn + ".conv2", out_channels, out_channels, 3, 1) {
  if (in_channels != out_channels) shortcut_.emplace(declare, fqn + ".nin_shortcut", in_channels, out_channels, 1, 0);
}

at::Tensor ResnetBlock::forward(const at::Tensor& input) const {
  at::Tensor x = conv1_.forward(normed_swish(norm1_, input));
  x = normed_swish(norm2_, x);  // Frees the first convolution's result.
  x = conv2_.forward(x);
  return x.add_(shortcut_ ? shortcut_->forward(input) : input);
}

PlaceAttention::PlaceAttention(const nn::Declare& declare, const std::string& fqn, int64_t channels, int64_t groups)
    : norm_(declare, fqn + ".norm", channels, groups, kGroupNormEps),
      q_(declare, fqn + ".q", channels, channels, 1, 0),
      k_(declare, fqn + ".k", channels, channels, 1, 0),
      v_(declare, fqn + ".v", channels, channels, 1, 0),
      proj_out_(declare, fqn + ".proj_out", channels, channels, 1, 0) {}

at::Tensor PlaceAttention::forward(const at::Tensor& input) const {
  const at::Tensor x = norm_.forward(input);
  const at::Tensor out =
      at::scaled_dot_product_attention(as_tokens(q_.forward(x)), as_tokens(k_.forward(x)), as_tokens(v_.forward(x)));
  const at::Tensor places = out.squeeze(1).transpose(1, 2).reshape(input.sizes());
  return proj_out_.forward(places).add_(input);
}

Middle::Middle(const nn::Declare& declare, const std::string& fqn, int64_t channels, int64_t groups)
    : block_1_(declare, fqn + ".block_1", channels, channels, groups),
      attention_(declare, fqn + ".attn_1", channels, groups),
      block_2_(declare, fqn + ".block_2", channels, channels, groups) {}

at::Tensor Middle::forward(const at::Tensor& input) const {
  return block_2_.forward(attention_.forward(block_1_.forward(input)));
}

Downsample::Downsample(const nn::Declare& declare, const std::string& fqn, int64_t channels)
    : conv_(declare, fqn + ".conv", channels, channels, 3, /*padding=*/0, /*stride=*/2) {}

at::Tensor Downsample::forward(const at::Tensor& input) const {
  return conv_.forward(at::constant_pad_nd(input, {0, 1, 0, 1}));
}

Upsample::Upsample(const nn::Declare& declare, const std::string& fqn, int64_t channels)
    : conv_(declare, fqn + ".conv", channels, channels, 3, 1) {}

at::Tensor Upsample::forward(const at::Tensor& input) const {
  return conv_.forward(at::upsample_nearest2d(input, {2 * input.size(2), 2 * input.size(3)}));
}

OutLayer::OutLayer(const nn::Declare& declare, const std::string& fqn, int64_t in_channels, int64_t out_channels,
                   int64_t groups)
    : norm_(declare, fqn + ".norm_out", in_channels, groups, kGroupNormEps),
      conv_(declare, fqn + ".conv_out", in_channels, out_channels, 3, 1) {}

at::Tensor OutLayer::forward(const at::Tensor& input) const { return conv_.forward(normed_swish(norm_, input)); }

}  // namespace titan::encoders
