#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace titan::images {

// How pixels are stored, named as in Pillow, Python's imaging library (PIL). Numbers of this folder that are said to
// equal Pillow's are those of version 13.
enum class Mode : uint8_t {
  k1,     // Black and white: a byte of 0 or 255.
  kL,     // Gray.
  kLA,    // Gray and alpha.
  kP,     // A number of a colour in `palette`.
  kRGB,   // Red, green, blue.
  kRGBA,  // The same and alpha, with which the colours are not multiplied.
  kCMYK,  // Cyan, magenta, yellow, black; 255 is full ink.
  kI16,   // Gray of 16 bits: two bytes, the low one first.
};

struct Image {
  int width = 0, height = 0;  // At least 1 each, except in an image without pixels.
  Mode mode = Mode::kRGB;
  std::vector<uint8_t> pixels;  // [height, width, pixel_bytes(mode)], rows from the top.
  // Mode kP: [256, 3] red, green and blue; colours that the file does not define are black. Which of them are
  // transparent is not kept, because Pillow's convert("RGB") ignores it too.
  std::vector<uint8_t> palette;
};

// Returns the bytes of a pixel.
constexpr size_t pixel_bytes(Mode mode) {
  switch (mode) {
    case Mode::k1:
    case Mode::kL:
    case Mode::kP:
      return 1;
    case Mode::kLA:
    case Mode::kI16:
      return 2;
    case Mode::kRGB:
      return 3;
    case Mode::kRGBA:
    case Mode::kCMYK:
      return 4;
  }
  return 0;
}

// Returns Pillow's name of a mode, such as "I;16".
const char* name(Mode mode);

// An image of that size with zeros as pixels, and without a palette.
Image blank_image(Mode mode, int width, int height);

// A part of an image, in pixels from its left upper corner.
struct Box {
  int left = 0, top = 0, width = 0, height = 0;
};

// Returns that part of the image, as Pillow's Image.crop. The box must lie in the image and have at least one pixel.
Image crop(const Image& image, const Box& box);

// Returns the image in mode kRGB with the same bytes as Pillow's convert("RGB"): alpha is dropped, ink is turned into
// light, a colour of a palette is looked up, and gray of 16 bits is clipped at 255 rather than scaled.
Image to_rgb(Image image);

}  // namespace titan::images
