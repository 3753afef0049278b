// Pictures for a model and for people: what cannot be cut or written is refused with its reason, and a grid has every
// picture at its place.

#include <gtest/gtest.h>

#include "worker/rank/data/images/decode.h"
#include "worker/rank/data/images/encode_png.h"
#include "worker/rank/data/images/patches.h"
#include "worker/rank/data/images/square_crop.h"

namespace titan::images {
namespace {

TEST(SquareCropTest, SmallImagesAreCountedAndDrawNothing) {
  int drawn = 0;
  const auto draw = [&drawn](int64_t) -> int64_t { return ++drawn, 0; };
  std::vector<float> square(3 * 8 * 8);
  for (const auto& [width, height] : {std::pair{7, 100}, {100, 7}, {7, 7}}) {
    const absl::Status status = write_square_crop(blank_image(Mode::kRGB, width, height), 8, draw, square.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  }
  EXPECT_EQ(drawn, 0);
  EXPECT_TRUE(write_square_crop(blank_image(Mode::kL, 8, 8), 8, draw, square.data()).ok());
  EXPECT_EQ(drawn, 1);
  EXPECT_EQ(square, std::vector<float>(square.size(), -1));
}

TEST(PatchesTest, UnsuitableShapesAreRefused) {
  const PatchOptions options;
  EXPECT_EQ(patched_size({16, 16}, options)->width, 16);
  EXPECT_EQ(patched_size({3, 2}, options)->height, 16);  // Enlarged to one patch.
  EXPECT_EQ(patched_size({1, 201}, options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(patched_size({1000, 16}, {.max_patches = 2}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EncodePngTest, RefusesWhatCannotBeWritten) {
  const std::vector<uint8_t> rgb(12);
  EXPECT_TRUE(encode_png(rgb, 2, 2, {}).ok());
  for (const auto& [width, height] : {std::pair{2, 3}, {0, 0}, {-2, -2}, {4, 0}}) {
    EXPECT_EQ(encode_png(rgb, width, height, {}).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const char* keyword : {"", " x", "x ", "a\nb"}) {
    EXPECT_EQ(encode_png(rgb, 2, 2, {.texts = {{keyword, "text"}}}).status().code(), absl::StatusCode::kInvalidArgument)
        << '"' << keyword << '"';
  }
  EXPECT_FALSE(encode_png(rgb, 2, 2, {.texts = {{std::string(80, 'k'), "text"}}}).ok());
}

Image plain(int width, int height, uint8_t value) {
  Image image = blank_image(Mode::kRGB, width, height);
  image.pixels.assign(image.pixels.size(), value);
  return image;
}

TEST(PictureGridTest, PicturesFollowEachOther) {
  const std::vector<Image> pictures = {plain(2, 1, 1), plain(2, 1, 2), plain(2, 1, 3)};
  const Image grid = *picture_grid(pictures, 2, 1);
  ASSERT_EQ(grid.width, 5);
  ASSERT_EQ(grid.height, 3);
  std::vector<uint8_t> reds;
  for (size_t i = 0; i < grid.pixels.size(); i += 3) reds.push_back(grid.pixels[i]);
  EXPECT_EQ(reds, (std::vector<uint8_t>{1, 1, 0, 2, 2, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0}));
  EXPECT_EQ(picture_grid(pictures, 8, 0)->width, 6);  // No empty columns.
}

TEST(PictureGridTest, RefusesPicturesThatDiffer) {
  for (const Image& other : {plain(1, 1, 0), blank_image(Mode::kRGBA, 2, 1)}) {
    const std::vector<Image> pictures = {plain(2, 1, 0), other};
    EXPECT_EQ(picture_grid(pictures, 2, 0).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(picture_grid({}, 2, 0).ok());
  const std::vector<Image> one = {plain(2, 1, 0)};
  EXPECT_FALSE(picture_grid(one, 0, 0).ok());
  EXPECT_FALSE(picture_grid(one, 1, -1).ok());
}

}  // namespace
}  // namespace titan::images
