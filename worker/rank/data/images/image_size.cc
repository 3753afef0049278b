#include "worker/rank/data/images/image_size.h"

#include <webp/decode.h>

#include <cstdint>

namespace titan::images {
namespace {

// Reads a number of big-endian bytes that are there.
int big_endian(std::string_view bytes, size_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return static_cast<int>(value);
}

std::optional<ImageSize> png_size(std::string_view bytes) {
  constexpr size_t kHeaderEnd = 24;  // The signature, then IHDR's length, name, width and height.
  if (bytes.size() < kHeaderEnd || bytes.substr(12, 4) != "IHDR") return std::nullopt;
  return ImageSize{big_endian(bytes, 16, 4), big_endian(bytes, 20, 4)};
}

// Whether a marker begins a frame, which holds the size. Three markers of that range begin something else.
bool begins_frame(int marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

std::optional<ImageSize> jpeg_size(std::string_view bytes) {
  constexpr int kFirstAlone = 0xd0, kLastAlone = 0xd9;  // Markers without a length.
  size_t at = 2;                                        // After the marker that begins the image.
  while (at + 9 <= bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) != 0xff) return std::nullopt;
    const int marker = static_cast<uint8_t>(bytes[at + 1]);
    if (marker == 0xff) {  // Padding before a marker.
      ++at;
    } else if (begins_frame(marker)) {
      return ImageSize{big_endian(bytes, at + 7, 2), big_endian(bytes, at + 5, 2)};
    } else if (marker >= kFirstAlone && marker <= kLastAlone) {
      at += 2;
    } else {
      at += 2 + static_cast<size_t>(big_endian(bytes, at + 2, 2));
    }
  }
  return std::nullopt;
}

std::optional<ImageSize> webp_size(std::string_view bytes) {
  constexpr size_t kExtendedEnd = 30;  // Sides of the canvas less one, 3 bytes each, in front of profiles and frames.
  if (bytes.substr(8).starts_with("WEBPVP8X")) {
    if (bytes.size() < kExtendedEnd) return std::nullopt;
    const auto side = [&](size_t at) {
      return 1 + (big_endian(bytes, at, 1) | big_endian(bytes, at + 1, 1) << 8 | big_endian(bytes, at + 2, 1) << 16);
    };
    return ImageSize{side(24), side(27)};
  }
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), &features) != VP8_STATUS_OK)
    return std::nullopt;
  return ImageSize{features.width, features.height};
}

}  // namespace

std::optional<ImageSize> image_size(std::string_view bytes) {
  std::optional<ImageSize> size;
  if (bytes.starts_with("\xff\xd8\xff")) {
    size = jpeg_size(bytes);
  } else if (bytes.starts_with("\x89PNG\r\n\x1a\n")) {
    size = png_size(bytes);
  } else if (bytes.starts_with("RIFF") && bytes.size() > 8) {
    size = webp_size(bytes);
  }
  return size && size->width > 0 && size->height > 0 ? size : std::nullopt;
}

}  // namespace titan::images
