// Data that is not a whole image of a supported format is refused with a status that says why: it neither ends the
// program nor makes it allocate without limit.

#include "worker/rank/data/images/decode.h"

#include <gtest/gtest.h>
#include <webp/encode.h>

#include <cstdio>
//
#include <jpeglib.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "worker/rank/data/images/encode_png.h"

namespace titan::images {
namespace {

constexpr int kWidth = 19, kHeight = 14;

std::vector<uint8_t> samples(size_t channels) {
  std::vector<uint8_t> values;
  for (size_t i = 0; i < kWidth * kHeight * channels; ++i) values.push_back(static_cast<uint8_t>(i * i / 7));
  return values;
}

std::string jpeg(int channels, J_COLOR_SPACE space, bool progressive) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = kWidth, info.image_height = kHeight;
  info.input_components = channels, info.in_color_space = space;
  jpeg_set_defaults(&info);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> pixels = samples(static_cast<size_t>(channels));
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + info.next_scanline * kWidth * static_cast<size_t>(channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string file(reinterpret_cast<const char*>(out), size);
  std::free(out);
  return file;
}

std::string webp(bool lossless) {
  const std::vector<uint8_t> pixels = samples(4);
  uint8_t* out = nullptr;
  const size_t size = lossless ? WebPEncodeLosslessRGBA(pixels.data(), kWidth, kHeight, 4 * kWidth, &out)
                               : WebPEncodeRGBA(pixels.data(), kWidth, kHeight, 4 * kWidth, 80, &out);
  std::string file(reinterpret_cast<const char*>(out), size);
  WebPFree(out);
  return file;
}

std::string png() { return *encode_png(samples(3), kWidth, kHeight, {.software = "test"}); }

struct File {
  const char* format;
  std::string bytes;
};

std::vector<File> files() {
  return {{"JPEG", jpeg(3, JCS_RGB, false)},
          {"JPEG", jpeg(1, JCS_GRAYSCALE, false)},
          {"JPEG", jpeg(4, JCS_CMYK, true)},
          {"PNG", png()},
          {"WebP", webp(true)},
          {"WebP", webp(false)}};
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

void expect_refused(std::string_view bytes, absl::StatusCode code, const std::string& message,
                    int64_t max_pixels = kDefaultMaxPixels) {
  const auto image = decode_image(bytes, max_pixels);
  ASSERT_FALSE(image.ok()) << message;
  EXPECT_EQ(image.status().code(), code) << image.status();
  EXPECT_TRUE(absl::StrContains(image.status().message(), message)) << image.status();
}

TEST(DecodeTest, FilesOfTheTestAreImages) {
  for (const File& file : files()) {
    const auto image = decode_image(file.bytes);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->width, kWidth);
    EXPECT_EQ(image->height, kHeight);
  }
}

TEST(DecodeTest, EveryPrefixIsRefused) {
  for (const File& file : files()) {
    for (size_t size = 0; size < file.bytes.size(); ++size) {
      // A copy, so that sanitizers see a read past its end.
      const std::vector<char> part(file.bytes.begin(), file.bytes.begin() + static_cast<ptrdiff_t>(size));
      const auto image = decode_image({part.data(), part.size()});
      ASSERT_FALSE(image.ok()) << file.format << " cut to " << size << " of " << file.bytes.size();
      const bool known = size >= 16;
      ASSERT_EQ(image.status().code(), known ? absl::StatusCode::kDataLoss : image.status().code()) << image.status();
      ASSERT_TRUE(!known || absl::StrContains(image.status().message(), file.format)) << image.status();
    }
  }
}

TEST(DecodeTest, FlippedBitsReturn) {
  int refused = 0;
  for (const File& file : files()) {
    const Image whole = *decode_image(file.bytes);
    for (size_t bit = 0; bit < 8 * file.bytes.size(); bit += 3) {
      std::string bytes = file.bytes;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
      const auto image = decode_image(bytes, 1 << 20);
      refused += !image.ok();
      if (!image.ok() || std::string(file.format) != "PNG") continue;
      EXPECT_EQ(image->pixels, whole.pixels) << "bit " << bit;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(DecodeTest, SizesOverTheLimitAreRefusedBeforeAllocation) {
  std::string bytes = png();
  const std::string header = "IHDR" + big_endian(1'000'000) + big_endian(1'000'000) + bytes.substr(24, 5);
  bytes.replace(12, header.size(), header);
  uint32_t sum = ~0U;  // CRC-32 of the header.
  for (const char byte : header) {
    sum ^= static_cast<uint8_t>(byte);
    for (int i = 0; i < 8; ++i) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320U : 0);
  }
  bytes.replace(12 + header.size(), 4, big_endian(~sum));
  expect_refused(bytes, absl::StatusCode::kInvalidArgument, "a PNG image of 1000000 x 1000000 pixels");

  bytes = jpeg(3, JCS_RGB, false);
  bytes.replace(bytes.find("\xff\xc0") + 5, 4, "\xff\xdc\xff\xdc");  // libjpeg's largest size is 65,500.
  expect_refused(bytes, absl::StatusCode::kInvalidArgument, "a JPEG image of 65500 x 65500 pixels");

  bytes = webp(true);
  bytes.replace(bytes.find("VP8L") + 9, 4, "\xff\xff\xff\x1f");
  expect_refused(bytes, absl::StatusCode::kInvalidArgument, "a WebP image of 16384 x 16384 pixels");

  for (const File& file : files()) {
    EXPECT_TRUE(decode_image(file.bytes, kWidth * kHeight).ok());
    expect_refused(file.bytes, absl::StatusCode::kInvalidArgument, "at most 265 pixels are decoded",
                   kWidth * kHeight - 1);
  }
}

TEST(DecodeTest, ProgressiveJpegHasLimitedScans) {
  std::string bytes = jpeg(1, JCS_GRAYSCALE, true);
  const size_t last = bytes.rfind("\xff\xda");
  const std::string scan = bytes.substr(last, bytes.size() - 2 - last);
  for (int i = 0; i < 600; ++i) bytes.insert(bytes.size() - 2, scan);
  expect_refused(bytes, absl::StatusCode::kDataLoss, "more than 500 scans");
}

TEST(DecodeTest, OtherFormatsAreNamed) {
  using namespace std::string_view_literals;
  const std::pair<std::string_view, const char*> cases[] = {
      {"", "an empty file"},
      {"GIF89a", "a GIF image"},
      {"BM....", "a BMP image"},
      {"II*\0...."sv, "a TIFF image"},
      {"\0\0\0\x1c"
       "ftypavif"sv,
       "an AVIF image"},
      {"\0\0\0\x18"
       "ftypheic"sv,
       "a HEIF image"},
      {"\n <!DOCTYPE HTML>", "an HTML page"},
      {"<html>", "an HTML page"},
      {"{\"error\": 404}", "a JSON document"},
      {"RIFF....WAVEfmt ", "an unknown format (it begins with \"RIFF....\")"},
      {"\xff\xd8", "an unknown format (it begins with \"\\xff\\xd8\")"},
  };
  for (const auto& [bytes, format] : cases) {
    expect_refused(bytes, absl::StatusCode::kInvalidArgument, std::string(format) + "; supported: JPEG, PNG, WebP");
  }
  expect_refused(jpeg(2, JCS_UNKNOWN, false), absl::StatusCode::kInvalidArgument, "2 components");
}

}  // namespace
}  // namespace titan::images
