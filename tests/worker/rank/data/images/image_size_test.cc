#include "worker/rank/data/images/image_size.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/rank/data/images/encode_png.h"

namespace titan::images {
namespace {

using namespace std::string_literals;

// Sizes as text, "none" if there is none.
std::string size_of(std::string_view bytes) {
  const std::optional<ImageSize> size = image_size(bytes);
  return size ? std::to_string(size->width) + "x" + std::to_string(size->height) : "none";
}

// A JPEG image with a preview in EXIF data and a table before its progressive frame of 300 x 517 pixels.
std::string jpeg() {
  const std::string preview = "\xff\xe1\x03\x02"s + std::string(0x300, '\xff');
  return "\xff\xd8"s + preview + "\xff\xc4\x00\x04\x01\x02\xff"s + "\xff\xc2\x00\x11\x08\x02\x05\x01\x2c\x03"s +
         std::string(20, '\x11');
}

std::string webp() {
  return "RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0"s + "\x2b\x01\0"s + "\x04\x02\0"s + std::string(8, '\0');
}

std::string png(int width, int height) {
  return *encode_png(std::vector<uint8_t>(static_cast<size_t>(3 * width * height)), width, height, {});
}

// A size is found as soon as the header is there, and never in less.
TEST(ImageSizeTest, ReadsTheHeaderAlone) {
  for (const auto& [bytes, needed] :
       {std::pair{png(300, 517), size_t{24}}, {jpeg(), size_t{790}}, {webp(), size_t{30}}}) {
    for (size_t count = 0; count <= bytes.size(); ++count) {
      const std::string found = size_of(std::string_view(bytes).substr(0, count));
      if (count < needed) {
        EXPECT_EQ(found, "none") << count;
      } else {
        EXPECT_EQ(found, "300x517") << count;
      }
    }
  }
}

TEST(ImageSizeTest, OtherBytesHaveNone) {
  EXPECT_EQ(size_of("GIF89a\x2c\x01\x05\x02"), "none");
  EXPECT_EQ(size_of("\xff\xd8\xff\xe0\x00\x00\x00\x00\x00\x00\x00\x00\x00"s), "none");
  std::string empty = png(1, 1);
  empty.replace(16, 4, 4, '\0');
  EXPECT_EQ(size_of(empty), "none");
  empty.replace(16, 4, 4, '\xff');
  EXPECT_EQ(size_of(empty), "none");
}

}  // namespace
}  // namespace titan::images
