#include "worker/rank/data/images/resize.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/rank/data/images/arithmetic.h"
#include "worker/rank/data/images/axes_filter.h"
#include "worker/rank/data/images/byte_filters.h"
#include "worker/rank/data/images/taps.h"
#include "worker/rank/data/images/word_filters.h"

namespace titan::images {
namespace {

bool columns_first(int from_width, int from_height, int to_width, int to_height) {
  return to_height < from_height && int64_t{from_height} - to_height > 2 * (int64_t{from_width} - to_width);
}

struct Resizing {
  int width, height;
  Box box;
};

template <typename Filters, typename AxisTaps>
auto filter_image(const Image& image, const std::vector<typename Filters::Sample>& samples, size_t channels,
                  const Resizing& to, const AxisTaps& taps) {
  const auto across = taps(image.width, to.width, to.box.left, to.box.width);
  const auto down = taps(image.height, to.height, to.box.top, to.box.height);
  return AxesFilter<Filters>(samples, image.width, channels, across, down)
      .filter(columns_first(image.width, image.height, to.width, to.height));
}

std::vector<uint8_t> resize_bytes(const Image& image, const std::vector<uint8_t>& pixels, const Resizing& to) {
  return filter_image<ByteFilters>(image, pixels, pixel_bytes(image.mode), to, bicubic_integer_taps);
}

std::vector<uint8_t> resize_words(const Image& image, const Resizing& to) {
  std::vector<uint16_t> words(image.pixels.size() / 2);
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<uint16_t>(image.pixels[2 * i] | image.pixels[2 * i + 1] << 8);
  }
  words = filter_image<WordFilters>(image, words, 1, to, bicubic_taps);
  std::vector<uint8_t> bytes(2 * words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    bytes[2 * i] = static_cast<uint8_t>(words[i]);
    bytes[2 * i + 1] = static_cast<uint8_t>(words[i] >> 8);
  }
  return bytes;
}

// The last channel is alpha. Fully transparent pixels lose their colours.
template <size_t channels>
void multiply_by_alpha(std::vector<uint8_t>& pixels) {
  for (size_t i = 0; i < pixels.size(); i += channels) {
    const uint8_t alpha = pixels[i + channels - 1];
    for (size_t c = 0; c + 1 < channels; ++c) {
      pixels[i + c] = static_cast<uint8_t>(times_over_255(pixels[i + c], alpha));
    }
  }
}

template <size_t channels>
void divide_by_alpha(std::vector<uint8_t>& pixels) {
  for (size_t i = 0; i < pixels.size(); i += channels) {
    const int alpha = pixels[i + channels - 1];
    if (alpha == 0 || alpha == 255) continue;
    for (size_t c = 0; c + 1 < channels; ++c) {
      pixels[i + c] = static_cast<uint8_t>(std::min(255 * pixels[i + c] / alpha, 255));
    }
  }
}

template <size_t channels>
std::vector<uint8_t> resize_with_alpha(const Image& image, const Resizing& to) {
  std::vector<uint8_t> pixels = image.pixels;
  multiply_by_alpha<channels>(pixels);
  pixels = resize_bytes(image, pixels, to);
  divide_by_alpha<channels>(pixels);
  return pixels;
}

std::vector<uint8_t> take_nearest(const Image& image, const Resizing& to) {
  const std::vector<int> columns = nearest_pixels(image.width, to.width, to.box.left, to.box.width);
  std::vector<uint8_t> pixels;
  pixels.reserve(static_cast<size_t>(to.box.width) * static_cast<size_t>(to.box.height));
  for (const int y : nearest_pixels(image.height, to.height, to.box.top, to.box.height)) {
    const uint8_t* const row = image.pixels.data() + static_cast<size_t>(y) * static_cast<size_t>(image.width);
    for (const int x : columns) pixels.push_back(row[x]);
  }
  return pixels;
}

std::vector<uint8_t> resize_pixels(const Image& image, const Resizing& to) {
  switch (image.mode) {
    case Mode::k1:
    case Mode::kP:
      return take_nearest(image, to);
    case Mode::kL:
    case Mode::kRGB:
    case Mode::kCMYK:
      return resize_bytes(image, image.pixels, to);
    case Mode::kLA:
      return resize_with_alpha<2>(image, to);
    case Mode::kRGBA:
      return resize_with_alpha<4>(image, to);
    case Mode::kI16:
      return resize_words(image, to);
  }
  return {};
}

}  // namespace

Image resize_bicubic(const Image& image, int width, int height) {
  return resize_bicubic(image, width, height, {0, 0, width, height});
}

Image resize_bicubic(const Image& image, int width, int height, const Box& box) {
  if (image.width == width && image.height == height) return crop(image, box);
  return {.width = box.width,
          .height = box.height,
          .mode = image.mode,
          .pixels = resize_pixels(image, {width, height, box}),
          .palette = image.palette};
}

}  // namespace titan::images
