#include "worker/rank/data/images/patches.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/patch_sizes.h"
#include "worker/rank/data/images/resize.h"

namespace titan::images {
namespace {

constexpr double kMean[] = {0.48145466, 0.4578275, 0.40821073};
constexpr double kDeviation[] = {0.26862954, 0.26130258, 0.27577711};

using Normalized = std::array<std::array<float, 256>, 3>;

const Normalized& normalized() {
  static const Normalized table = [] {
    Normalized values;
    for (size_t c = 0; c < values.size(); ++c) {
      for (size_t i = 0; i < 256; ++i) {
        values[c][i] = static_cast<float>((static_cast<double>(i) / 255.0 - kMean[c]) / kDeviation[c]);
      }
    }
    return values;
  }();
  return table;
}

ImageSize times(ImageSize size, double scale) {
  return {static_cast<int>(size.width * scale), static_cast<int>(size.height * scale)};
}

// Scales an image with far too many patches down, and one with none up, without regard to multiples of `side`.
ImageSize roughly_scaled(ImageSize size, int side, int max_patches) {
  const int64_t count = int64_t{size.width} * size.height / (int64_t{side} * side);
  if (count == 0) {
    return times(size, std::max(static_cast<double>(side) / size.width, static_cast<double>(side) / size.height));
  }
  if (count <= max_patches) return size;
  return times(size, std::sqrt(static_cast<double>(max_patches) / static_cast<double>(count)));
}

void write_patch(const Image& rgb, size_t side, size_t left, size_t top, float* out) {
  const Normalized& values = normalized();
  for (size_t y = 0; y < side; ++y) {
    const uint8_t* pixel = rgb.pixels.data() + 3 * ((top + y) * static_cast<size_t>(rgb.width) + left);
    for (size_t x = 0; x < side; ++x, pixel += 3) {
      for (size_t c = 0; c < 3; ++c) *out++ = values[c][pixel[c]];
    }
  }
}

}  // namespace

absl::StatusOr<ImageSize> patched_size(ImageSize size, const PatchOptions& options) {
  const int side = options.patch_size * options.merge_size;
  const ImageSize rough = roughly_scaled(size, side, options.max_patches);
  const int shorter = std::min(rough.width, rough.height), longer = std::max(rough.width, rough.height);
  if (shorter < side) return unsuitable(size, absl::StrCat("a side would be shorter than ", side, " pixels"));
  if (static_cast<double>(longer) / shorter > kMaxSideRatio) {
    return unsuitable(size, absl::StrCat("a side is more than ", kMaxSideRatio, " times the other"));
  }
  ImageSize result{static_cast<int>(round_to_multiple(rough.width, side)),
                   static_cast<int>(round_to_multiple(rough.height, side))};
  const auto area = static_cast<double>(int64_t{result.width} * result.height);
  const auto max_area = static_cast<double>(int64_t{options.max_patches} * side * side);
  if (area > max_area) {
    const double shrink = std::sqrt(area / max_area);
    result = {static_cast<int>(std::floor(rough.width / shrink / side)) * side,
              static_cast<int>(std::floor(rough.height / shrink / side)) * side};
  }
  if (result.width == 0 || result.height == 0) return unsuitable(size, "a side would become zero");
  return result;
}

absl::StatusOr<ImagePatches> cut_patches(const Image& image, const PatchOptions& options) {
  TITAN_ASSIGN_OR_RETURN(const ImageSize size, patched_size({image.width, image.height}, options));
  const Image rgb = resize_bicubic(to_rgb(image), size.width, size.height);
  const auto side = static_cast<size_t>(options.patch_size);
  ImagePatches result{.rows = size.height / options.patch_size, .columns = size.width / options.patch_size};
  result.patches.resize(rgb.pixels.size());
  float* out = result.patches.data();
  for (int row = 0; row < result.rows; ++row) {
    for (int column = 0; column < result.columns; ++column, out += side * side * 3) {
      write_patch(rgb, side, static_cast<size_t>(column) * side, static_cast<size_t>(row) * side, out);
      result.places.insert(result.places.end(), {row, column});
    }
  }
  return result;
}

}  // namespace titan::images
