#include "worker/rank/data/images/image.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace titan::images {

const char* name(Mode mode) {
  switch (mode) {
    case Mode::k1:
      return "1";
    case Mode::kL:
      return "L";
    case Mode::kLA:
      return "LA";
    case Mode::kP:
      return "P";
    case Mode::kRGB:
      return "RGB";
    case Mode::kRGBA:
      return "RGBA";
    case Mode::kCMYK:
      return "CMYK";
    case Mode::kI16:
      return "I;16";
  }
  return "";
}

Image blank_image(Mode mode, int width, int height) {
  Image image{.width = width, .height = height, .mode = mode};
  image.pixels.resize(pixel_bytes(mode) * static_cast<size_t>(width) * static_cast<size_t>(height));
  return image;
}

Image crop(const Image& image, const Box& box) {
  Image part = blank_image(image.mode, box.width, box.height);
  part.palette = image.palette;
  const size_t bytes = pixel_bytes(image.mode), row = bytes * static_cast<size_t>(box.width);
  for (int y = 0; y < box.height; ++y) {
    const size_t first =
        static_cast<size_t>(box.top + y) * static_cast<size_t>(image.width) + static_cast<size_t>(box.left);
    std::memcpy(part.pixels.data() + static_cast<size_t>(y) * row, image.pixels.data() + first * bytes, row);
  }
  return part;
}

}  // namespace titan::images
