#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/rank/data/images/image.h"

namespace titan::images {

// Pillow refuses images of more pixels than this as decompression bombs.
constexpr int64_t kDefaultMaxPixels = 2 * (int64_t{1} << 30) / 12;

// Decodes a JPEG, PNG or WebP image, which is recognised by its content. Modes and pixels are those of Pillow's
// Image.open: JPEG becomes kL, kRGB or kCMYK (Adobe's inverted ink is inverted back); PNG becomes k1, kL, kLA, kP,
// kRGB, kRGBA or kI16, and of colours with 16 bits a sample the high 8 are kept; WebP becomes kRGB or kRGBA, and an
// animation its first frame. Colour profiles, gamma and the orientation in EXIF data are not applied, as Pillow does
// not.
//
// Differences from Pillow: PNG data must have correct checksums and a last chunk, and a JPEG file may have at most 500
// scans. Like Pillow it accepts JPEG data that libjpeg repairs with a warning. Where a progressive JPEG file lacks
// scans, libjpeg smooths what it has, by a method that changed between versions.
//
// Memory: the pixels, and for a progressive JPEG image 2 more bytes a sample while it is decoded.
//
// Errors: InvalidArgument for another format (names it), for a variant that is not supported, and for more than
// `max_pixels` pixels; DataLoss for data that is truncated or corrupt (says where).
absl::StatusOr<Image> decode_image(std::string_view bytes, int64_t max_pixels = kDefaultMaxPixels);

}  // namespace titan::images
