#include "worker/rank/data/images/square_crop.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/rank/data/images/resize.h"

namespace titan::images {
namespace {

// Writes [3, height, width] of numbers between -1 and 1.
void write_planes(const Image& rgb, float* out) {
  std::array<float, 256> scaled;
  for (size_t i = 0; i < scaled.size(); ++i) scaled[i] = static_cast<float>(i) / 255.0f * 2.0f - 1.0f;
  const size_t pixels = rgb.pixels.size() / 3;
  for (size_t c = 0; c < 3; ++c) {
    for (size_t i = 0; i < pixels; ++i) *out++ = scaled[rgb.pixels[3 * i + c]];
  }
}

// Returns the new length of a side after the shorter one became `size`, in Python's arithmetic: an integer at times
// lies one above the exact ratio.
int scaled_length(int side, int shorter, int size) {
  return static_cast<int>(std::ceil(static_cast<double>(size) / shorter * side));
}

}  // namespace

absl::Status write_square_crop(const Image& image, int size, absl::FunctionRef<int64_t(int64_t)> draw, float* out) {
  if (std::min(image.width, image.height) < size) {
    return absl::OutOfRangeError(
        absl::StrCat("an image of ", image.width, " x ", image.height, " pixels; each side needs ", size));
  }
  const bool wide = image.width >= image.height;
  const int width = wide ? scaled_length(image.width, image.height, size) : size;
  const int height = wide ? size : scaled_length(image.height, image.width, size);
  const auto offset = static_cast<int>(draw((wide ? width : height) - size + 1));
  const Box box{wide ? offset : 0, wide ? 0 : offset, size, size};
  write_planes(to_rgb(resize_bicubic(image, width, height, box)), out);
  return absl::OkStatus();
}

}  // namespace titan::images
