#include <algorithm>

#include "worker/rank/data/images/arithmetic.h"
#include "worker/rank/data/images/image.h"

namespace titan::images {
namespace {

// Writes `color(pixel, rgb)` for each pixel.
template <typename Color>
Image map_pixels(const Image& image, const Color& color) {
  Image rgb = blank_image(Mode::kRGB, image.width, image.height);
  const size_t bytes = pixel_bytes(image.mode);
  const uint8_t* from = image.pixels.data();
  uint8_t* to = rgb.pixels.data();
  for (uint8_t* const end = to + rgb.pixels.size(); to != end; to += 3, from += bytes) color(from, to);
  return rgb;
}

void write_gray(uint8_t gray, uint8_t* rgb) { rgb[0] = rgb[1] = rgb[2] = gray; }

void ink_to_light(const uint8_t* cmyk, uint8_t* rgb) {
  const int light = 255 - cmyk[3];
  for (int i = 0; i < 3; ++i) rgb[i] = static_cast<uint8_t>(light - times_over_255(cmyk[i], light));
}

}  // namespace

Image to_rgb(Image image) {
  switch (image.mode) {
    case Mode::kRGB:
      return image;
    case Mode::k1:
    case Mode::kL:
    case Mode::kLA:
      return map_pixels(image, [](const uint8_t* pixel, uint8_t* rgb) { write_gray(pixel[0], rgb); });
    case Mode::kI16:
      return map_pixels(image,
                        [](const uint8_t* pixel, uint8_t* rgb) { write_gray(pixel[1] == 0 ? pixel[0] : 255, rgb); });
    case Mode::kP:
      return map_pixels(image, [&image](const uint8_t* pixel, uint8_t* rgb) {
        std::copy_n(image.palette.data() + 3 * size_t{*pixel}, 3, rgb);
      });
    case Mode::kRGBA:
      return map_pixels(image, [](const uint8_t* pixel, uint8_t* rgb) { std::copy_n(pixel, 3, rgb); });
    case Mode::kCMYK:
      return map_pixels(image, ink_to_light);
  }
  return {};
}

}  // namespace titan::images
