#pragma once

namespace titan::images {

// Returns a * b / 255 to the nearest integer, for a and b of 0 to 255, in the arithmetic that Pillow uses.
constexpr int times_over_255(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

}  // namespace titan::images
