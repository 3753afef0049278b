// Pictures of a dataset.

#include "tests/fuzz/target.h"
#include "worker/rank/data/images/decode.h"
#include "worker/rank/data/images/encode_png.h"
#include "worker/rank/data/images/patches.h"
#include "worker/rank/data/images/resize.h"
#include "worker/rank/data/images/square_crop.h"

namespace titan::fuzz {

// The input is a file in any format.
TITAN_FUZZ(image, 20000) {
  constexpr int64_t kMaxPixels = 1 << 16;
  const auto image = images::decode_image(bytes, kMaxPixels);
  if (!image.ok()) return;
  const auto pixels = static_cast<size_t>(image->width) * static_cast<size_t>(image->height);
  require(pixels > 0 && pixels <= size_t{kMaxPixels}, "the limit holds");
  require(image->pixels.size() == pixels * images::pixel_bytes(image->mode), "every pixel has its bytes");
  const images::Image rgb = images::to_rgb(images::resize_bicubic(*image, 9, 5));
  require(rgb.pixels.size() == 3 * 9 * 5, "a resized image has its size");
  (void)images::cut_patches(*image, {.patch_size = 4, .max_patches = 16});
  std::vector<float> square(3 * 4 * 4);
  (void)images::write_square_crop(
      *image, 4, [](int64_t bound) { return bound - 1; }, square.data());
  const auto written = images::encode_png(rgb.pixels, rgb.width, rgb.height, {});
  require(written.ok(), "pixels can be written");
  const auto again = images::decode_image(*written);
  require(again.ok() && again->pixels == rgb.pixels, "what was written is read back");
}

}  // namespace titan::fuzz
