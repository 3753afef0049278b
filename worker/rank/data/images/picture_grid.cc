#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/rank/data/images/encode_png.h"

namespace titan::images {
namespace {

std::string size_of(const Image& image) {
  return absl::StrCat(image.width, " x ", image.height, " in mode ", name(image.mode));
}

void paste(const Image& picture, int left, int top, Image& onto) {
  const size_t row = 3 * static_cast<size_t>(picture.width);
  for (int y = 0; y < picture.height; ++y) {
    const size_t at = static_cast<size_t>(top + y) * static_cast<size_t>(onto.width) + static_cast<size_t>(left);
    std::memcpy(onto.pixels.data() + 3 * at, picture.pixels.data() + static_cast<size_t>(y) * row, row);
  }
}

}  // namespace

absl::StatusOr<Image> picture_grid(std::span<const Image> pictures, int columns, int gap) {
  if (pictures.empty() || columns < 1 || gap < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot arrange ", pictures.size(), " pictures in ", columns, " columns with a gap of ", gap));
  }
  const Image& first = pictures.front();
  for (const Image& one : pictures) {
    if (one.mode == Mode::kRGB && one.width == first.width && one.height == first.height) continue;
    return absl::InvalidArgumentError(absl::StrCat("cannot arrange pictures of ", size_of(first), " and ", size_of(one),
                                                   "; they need one size and mode RGB"));
  }
  const auto count = static_cast<int>(pictures.size());
  columns = std::min(columns, count);
  const int rows = (count + columns - 1) / columns;
  Image grid = blank_image(Mode::kRGB, columns * (first.width + gap) - gap, rows * (first.height + gap) - gap);
  for (int i = 0; i < count; ++i) {
    paste(pictures[static_cast<size_t>(i)], i % columns * (first.width + gap), i / columns * (first.height + gap),
          grid);
  }
  return grid;
}

}  // namespace titan::images
