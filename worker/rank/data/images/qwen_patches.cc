#include "worker/rank/data/images/qwen_patches.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/patch_sizes.h"
#include "worker/rank/data/images/resize.h"

namespace titan::images {
namespace {

// The float of each byte, for each colour.
using ColorFloats = std::array<std::array<float, 256>, 3>;

ColorFloats color_floats(const QwenPatchOptions& options) {
  ColorFloats values{};
  for (size_t c = 0; c < values.size(); ++c) {
    const auto mean = static_cast<float>(options.mean[c]), deviation = static_cast<float>(options.deviation[c]);
    for (size_t i = 0; i < 256; ++i) {
      const auto scaled = static_cast<float>(static_cast<double>(i) * options.rescale_factor);
      values[c][i] = (scaled - mean) / deviation;
    }
  }
  return values;
}

// Appends one patch, whose left upper pixel is at (left, top).
void append_patch(const Image& rgb, size_t left, size_t top, const QwenPatchOptions& options, const ColorFloats& values,
                  std::vector<float>& out) {
  const auto side = static_cast<size_t>(options.patch_size), width = static_cast<size_t>(rgb.width);
  for (size_t c = 0; c < 3; ++c) {
    for (int frame = 0; frame < options.temporal_patch_size; ++frame) {
      for (size_t y = top; y < top + side; ++y) {
        for (size_t x = left; x < left + side; ++x) out.push_back(values[c][rgb.pixels[3 * (y * width + x) + c]]);
      }
    }
  }
}

}  // namespace

absl::StatusOr<ImageSize> smart_size(ImageSize size, const QwenPatchOptions& options) {
  if (size.width < 1 || size.height < 1) return unsuitable(size, "it has no pixels");
  const int shorter = std::min(size.width, size.height), longer = std::max(size.width, size.height);
  if (static_cast<double>(longer) / shorter > kMaxSideRatio)
    return unsuitable(size, absl::StrCat("a side is more than ", kMaxSideRatio, " times the other"));
  const int64_t factor = int64_t{options.patch_size} * options.merge_size;
  const auto area = static_cast<double>(int64_t{size.width} * size.height);
  int64_t width = round_to_multiple(size.width, factor), height = round_to_multiple(size.height, factor);
  const auto side = static_cast<double>(factor);
  if (width * height > options.max_pixels) {
    const double shrink = std::sqrt(area / static_cast<double>(options.max_pixels));
    const auto smaller = [&](int length) {
      return std::max(factor, static_cast<int64_t>(std::floor(length / shrink / side)) * factor);
    };
    width = smaller(size.width), height = smaller(size.height);
  } else if (width * height < options.min_pixels) {
    const double grow = std::sqrt(static_cast<double>(options.min_pixels) / area);
    const auto larger = [&](int length) { return static_cast<int64_t>(std::ceil(length * grow / side)) * factor; };
    width = larger(size.width), height = larger(size.height);
  }
  if (width == 0 || height == 0) return unsuitable(size, "a side would become zero");
  return ImageSize{static_cast<int>(width), static_cast<int>(height)};
}

absl::StatusOr<QwenPatches> cut_qwen_patches(const Image& image, const QwenPatchOptions& options) {
  TITAN_ASSIGN_OR_RETURN(const ImageSize size, smart_size({image.width, image.height}, options));
  const Image rgb = resize_bicubic(to_rgb(image), size.width, size.height);
  const ColorFloats values = color_floats(options);
  QwenPatches result{.rows = size.height / options.patch_size, .columns = size.width / options.patch_size};
  result.patches.reserve(rgb.pixels.size() * static_cast<size_t>(options.temporal_patch_size));
  const int merge = options.merge_size;
  for (int square_row = 0; square_row < result.rows; square_row += merge) {
    for (int square_column = 0; square_column < result.columns; square_column += merge) {
      for (int patch = 0; patch < merge * merge; ++patch) {
        const auto row = static_cast<size_t>(square_row + patch / merge);
        const auto column = static_cast<size_t>(square_column + patch % merge);
        const auto side = static_cast<size_t>(options.patch_size);
        append_patch(rgb, column * side, row * side, options, values, result.patches);
      }
    }
  }
  return result;
}

}  // namespace titan::images
