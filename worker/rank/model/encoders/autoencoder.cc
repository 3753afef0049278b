#include "worker/rank/model/encoders/autoencoder.h"

#include <c10/util/Exception.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace titan::encoders {
namespace {

// A level's channels, and those that it gets.
struct Channels {
  int64_t in = 0, out = 0;
};

Channels down_channels(const AutoencoderOptions& options, size_t level) {
  return {options.channels[level == 0 ? 0 : level - 1], options.channels[level]};
}

Channels up_channels(const AutoencoderOptions& options, size_t level) {
  return {options.channels[level + 1 == options.channels.size() ? level : level + 1], options.channels[level]};
}

std::vector<ResnetBlock> level_blocks(const nn::Declare& declare, const std::string& fqn, Channels channels,
                                      int64_t count, int64_t groups) {
  std::vector<ResnetBlock> blocks;
  for (int64_t i = 0; i < count; ++i) {
    blocks.emplace_back(declare, absl::StrCat(fqn, ".block.", i), i == 0 ? channels.in : channels.out, channels.out,
                        groups);
  }
  return blocks;
}

void check_channels(const at::Tensor& x, int64_t channels, const char* what) {
  TORCH_CHECK(x.dim() == 4 && x.size(1) == channels, "the autoencoder needs ", what, " [B, ", channels,
              ", height, width], got ", x.sizes());
}

}  // namespace

at::Tensor sample_latents(const AutoencoderOptions& options, const Moments& moments, const at::Tensor& noise) {
  TORCH_CHECK(noise.sizes() == moments.mean.sizes(), "the autoencoder needs noise of shape ", moments.mean.sizes(),
              ", got ", noise.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor deviation = at::exp(0.5 * moments.logvar);
  return options.scale * (moments.mean + deviation * noise.to(deviation.scalar_type()) - options.shift);
}

absl::Status check_image_size(const AutoencoderOptions& options, int64_t height, int64_t width) {
  const int64_t factor = options.downsampling();
  if (height > 0 && width > 0 && height % factor == 0 && width % factor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a picture of ", height, " x ", width,
                                                 " pixels has no latents: both sides must be multiples of ", factor));
}

ImageEncoder::ImageEncoder(const AutoencoderOptions& options)
    : Block("encoder"),
      options_(options),
      conv_in_(frozen(declare()), "encoder.conv_in", options.image_channels, options.channels[0], 3, 1),
      middle_(frozen(declare()), "encoder.mid", options.channels.back(), options.norm_groups),
      out_(frozen(declare()), "encoder", options.channels.back(), 2 * options.latent_channels, options.norm_groups) {
  const nn::Declare declare = frozen(this->declare());
  for (size_t i = 0; i < options.channels.size(); ++i) {
    const std::string fqn = absl::StrCat("encoder.down.", i);
    Level& level = levels_.emplace_back();
    level.blocks = level_blocks(declare, fqn, down_channels(options, i), options.blocks_per_level, options.norm_groups);
    if (i + 1 < options.channels.size())
      level.downsample.emplace_back(declare, fqn + ".downsample", options.channels[i]);
  }
}

at::Tensor ImageEncoder::run(const at::Tensor& images) const {
  check_channels(images, options_.image_channels, "pictures");
  const absl::Status size = check_image_size(options_, images.size(2), images.size(3));
  TORCH_CHECK(size.ok(), std::string(size.message()));
  const at::NoGradGuard no_grad;
  at::Tensor x = conv_in_.forward(images);
  for (const Level& level : levels_) {
    for (const ResnetBlock& block : level.blocks) x = block.forward(x);
    for (const Downsample& downsample : level.downsample) x = downsample.forward(x);
  }
  return out_.forward(middle_.forward(x));
}

Moments ImageEncoder::moments(const at::Tensor& images) const {
  const std::vector<at::Tensor> halves = run(images).chunk(2, 1);
  return {.mean = halves[0], .logvar = halves[1]};
}

at::Tensor ImageEncoder::encode(const at::Tensor& images, const at::Tensor& noise) const {
  return sample_latents(options_, moments(images), noise);
}

at::Tensor ImageEncoder::forward(const at::Tensor& images, const nn::MicrobatchContext& /*context*/) {
  return run(images);
}

ImageDecoder::ImageDecoder(const AutoencoderOptions& options)
    : Block("decoder"),
      options_(options),
      conv_in_(frozen(declare()), "decoder.conv_in", options.latent_channels, options.channels.back(), 3, 1),
      middle_(frozen(declare()), "decoder.mid", options.channels.back(), options.norm_groups),
      out_(frozen(declare()), "decoder", options.channels[0], options.image_channels, options.norm_groups) {
  const nn::Declare declare = frozen(this->declare());
  for (size_t i = options.channels.size(); i-- > 0;) {
    const std::string fqn = absl::StrCat("decoder.up.", i);
    Level& level = levels_.emplace_back();
    level.blocks =
        level_blocks(declare, fqn, up_channels(options, i), options.blocks_per_level + 1, options.norm_groups);
    if (i > 0) level.upsample.emplace_back(declare, fqn + ".upsample", options.channels[i]);
  }
}

at::Tensor ImageDecoder::decode(const at::Tensor& latents) const {
  check_channels(latents, options_.latent_channels, "latents");
  const at::NoGradGuard no_grad;
  at::Tensor x = middle_.forward(conv_in_.forward(latents / options_.scale + options_.shift));
  for (const Level& level : levels_) {
    for (const ResnetBlock& block : level.blocks) x = block.forward(x);
    for (const Upsample& upsample : level.upsample) x = upsample.forward(x);
  }
  return out_.forward(x);
}

at::Tensor ImageDecoder::forward(const at::Tensor& latents, const nn::MicrobatchContext& /*context*/) {
  return decode(latents);
}

}  // namespace titan::encoders
