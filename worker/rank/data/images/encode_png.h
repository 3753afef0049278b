#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/images/image.h"

namespace titan::images {

// Texts that a PNG file has about its picture, all in UTF-8 without zero bytes.
struct PngFields {
  // EXIF tags in a chunk eXIf; empty ones are left out.
  std::string software, make, model, image_description;
  // Keyword and text of chunks iTXt. A keyword has 1 to 79 characters of printable ASCII, without blanks at its ends.
  std::vector<std::pair<std::string, std::string>> texts;
};

// Returns a PNG file of 8 bits a sample. The same pixels and fields give the same bytes with the same versions of
// libpng and zlib. rgb: [height, width, 3]. Errors: InvalidArgument if the sizes do not match or libpng refuses a size
// or a keyword.
absl::StatusOr<std::string> encode_png(std::span<const uint8_t> rgb, int width, int height, const PngFields& fields);

// Arranges pictures of one size, all in mode kRGB, row after row in `columns` columns, with `gap` black pixels between
// them and none at the edges. Cells without a picture are black.
// Errors: InvalidArgument without pictures, for less than one column, and for pictures of several sizes or modes.
absl::StatusOr<Image> picture_grid(std::span<const Image> pictures, int columns, int gap);

}  // namespace titan::images
