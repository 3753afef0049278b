#include "worker/rank/model/flux/pictures.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/rank/data/images/encode_png.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/random/sample_draws.h"

namespace titan::model::flux {
namespace {

// Returns pixels [3, height, width] as bytes. Values are clamped to [-1, 1] and truncated, as torchtitan does.
images::Image to_image(const at::Tensor& pixels) {
  const at::Tensor bytes =
      ((pixels.to(at::kFloat).clamp(-1, 1) + 1) * 127.5).to(at::kByte).permute({1, 2, 0}).contiguous().to(at::kCPU);
  images::Image image =
      images::blank_image(images::Mode::kRGB, static_cast<int>(bytes.size(1)), static_cast<int>(bytes.size(0)));
  std::copy_n(bytes.const_data_ptr<uint8_t>(), bytes.numel(), image.pixels.begin());
  return image;
}

Picture to_picture(const images::Image& image, std::string name, const std::string& caption) {
  const images::PngFields fields{.software = "AI generated;txt2img;flux",
                                 .make = "Titan",
                                 .model = "flux",
                                 .image_description = caption,
                                 .texts = {}};
  auto png = images::encode_png(image.pixels, image.width, image.height, fields);
  TORCH_CHECK(png.ok(), "flux: ", png.status().message());
  return {.name = std::move(name),
          .caption = caption,
          .png = *std::move(png),
          .width = image.width,
          .height = image.height};
}

// Returns the pictures in a square of rows and columns.
Picture grid_of(const std::vector<images::Image>& images) {
  constexpr int kGap = 2;
  const int columns = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(images.size()))));
  const auto grid = images::picture_grid(images, columns, kGap);
  TORCH_CHECK(grid.ok(), "flux: ", grid.status().message());
  return to_picture(*grid, "grid", "");
}

}  // namespace

Captions encode_captions(const JobEncoders& encoders, const std::vector<std::string>& captions, at::Device device) {
  const auto rows = static_cast<int64_t>(captions.size());
  at::Tensor t5 = at::zeros({rows, encoders.tokenizers->t5_length()}, at::kLong),
             clip = at::zeros({rows, encoders.tokenizers->clip_length()}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const std::string& caption = captions[static_cast<size_t>(row)];
    const absl::Status encoded = encoders.tokenizers->encode(caption, caption, t5[row].mutable_data_ptr<int64_t>(),
                                                             clip[row].mutable_data_ptr<int64_t>());
    TORCH_CHECK(encoded.ok(), "flux: caption ", row, ": ", encoded.message());
  }
  return {.txt = encoders.conditioner->txt(device::copy_async(t5, device)),
          .y = encoders.conditioner->vector(device::copy_async(clip, device))};
}

at::Tensor PictureSampler::noise(int64_t first, int64_t count, const PictureOptions& options) const {
  const int64_t pixels = encoders_.sizes.images.downsampling();
  at::Tensor noise = at::empty(
      {count, encoders_.sizes.images.latent_channels, options.height / pixels, options.width / pixels}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key =
        random::sample_key(options.seed, options.first_number + first + i, random::SampleStream::kNoise);
    at::Tensor row = noise[i];
    random::draw_normal(key, 0, row.numel(), row.mutable_data_ptr<float>());
  }
  return noise;
}

Samples PictureSampler::sample(const WholeModel& model, const comm::DeviceMesh& mesh,
                               const std::vector<std::string>& prompts, const PictureOptions& options) const {
  const int64_t all = std::ssize(prompts), side = 2 * encoders_.sizes.images.downsampling();
  SamplerOptions sampler{
      .times = sampling_times(options.steps, options.height / side * (options.width / side), options.shift),
      .empty = std::nullopt,
      .scale = options.scale,
      .context = &mesh.group(mesh::Axis::kContext)};
  if (options.guides) sampler.empty = encode_captions(encoders_, {""}, model.device);
  Samples samples;
  std::vector<images::Image> images;
  for (int64_t first = 0; first < all; first += options.rows) {
    const int64_t count = std::min(options.rows, all - first);
    const Captions captions =
        encode_captions(encoders_, {prompts.begin() + first, prompts.begin() + first + count}, model.device);
    const at::Tensor latents =
        sample_latents(model, spec_, device::copy_async(noise(first, count, options), model.device), captions, sampler);
    if (!at::isfinite(latents).all().item<bool>()) {
      samples.not_finite =
          absl::StrCat("the latents of pictures ", first, " to ", first + count - 1, " are not finite");
      return samples;
    }
    if (mesh.rank() != 0) continue;
    const at::Tensor pictures = encoders_.conditioner->pictures(latents);
    for (int64_t i = 0; i < count; ++i) {
      images.push_back(to_image(pictures[i]));
      samples.pictures.push_back(to_picture(images.back(), absl::StrFormat("%03d", options.first_number + first + i),
                                            prompts[static_cast<size_t>(first + i)]));
    }
  }
  if (images.size() > 1) samples.grid = grid_of(images);
  return samples;
}

}  // namespace titan::model::flux
