#pragma once

// Flux's autoencoder of pictures, in two halves: training needs only the encoder, sampling only the decoder. Pictures
// are [B, channels, H, W] with values in [-1, 1]; latents have 1 / downsampling() of their sides. Memory for large
// pictures: decoder_activation_bytes() in cost.h.

#include <ATen/ATen.h>

#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/encoders/options.h"
#include "worker/rank/model/encoders/autoencoder_layers.h"
#include "worker/rank/nn/block.h"

namespace titan::encoders {

// Mean and logarithm of the variance of a picture's latents, both [B, latent_channels, h, w], not scaled. They do not
// depend on random numbers, so they can be computed once and stored.
struct Moments {
  at::Tensor mean;
  at::Tensor logvar;
};

// Returns scale * (mean + exp(logvar / 2) * noise - shift), [B, latent_channels, h, w], in the type of the moments.
// `noise` has the shape of the mean and is drawn by the caller from a standard normal distribution. logvar is not
// clamped, as in Flux's training.
at::Tensor sample_latents(const AutoencoderOptions& options, const Moments& moments, const at::Tensor& noise);

// Returns InvalidArgument unless both sides are positive multiples of downsampling(): the encoder would ignore the
// remaining pixels at the right and the bottom.
absl::Status check_image_size(const AutoencoderOptions& options, int64_t height, int64_t width);

// Pictures to moments. Throws for a size that check_image_size() refuses.
class ImageEncoder final : public nn::Block {
 public:
  explicit ImageEncoder(const AutoencoderOptions& options);

  Moments moments(const at::Tensor& images) const;  // [B, image_channels, H, W] in the weights' type
  // Returns the latents [B, latent_channels, h, w] of images [B, image_channels, H, W] with this noise, which has the
  // latents' shape: sample_latents(moments(images)).
  at::Tensor encode(const at::Tensor& images, const at::Tensor& noise) const;
  // Returns mean and logvar, one after the other on dim 1: [B, 2 latent_channels, h, w].
  at::Tensor forward(const at::Tensor& images, const nn::MicrobatchContext& context) override;
  bool backward_reads_weights() const override { return false; }

  const AutoencoderOptions& options() const { return options_; }

 private:
  struct Level {
    std::vector<ResnetBlock> blocks;
    std::vector<Downsample> downsample;  // One, or none in the last level.
  };
  at::Tensor run(const at::Tensor& images) const;  // [B, image_channels, H, W] -> [B, 2 latent_channels, h, w]

  const AutoencoderOptions options_;
  Conv2d conv_in_;
  std::vector<Level> levels_;
  Middle middle_;
  OutLayer out_;
};

// Latents to pictures.
class ImageDecoder final : public nn::Block {
 public:
  explicit ImageDecoder(const AutoencoderOptions& options);

  // Returns pictures [B, image_channels, H, W], not clamped, of latents [B, latent_channels, h, w] as encode() returns
  // them.
  at::Tensor decode(const at::Tensor& latents) const;
  at::Tensor forward(const at::Tensor& latents, const nn::MicrobatchContext& context) override;  // decode()
  bool backward_reads_weights() const override { return false; }

  const AutoencoderOptions& options() const { return options_; }

 private:
  struct Level {
    std::vector<ResnetBlock> blocks;
    std::vector<Upsample> upsample;  // One, or none in the last level.
  };

  const AutoencoderOptions options_;
  Conv2d conv_in_;
  Middle middle_;
  std::vector<Level> levels_;  // In the order of computation: the lowest resolution first.
  OutLayer out_;
};

}  // namespace titan::encoders
