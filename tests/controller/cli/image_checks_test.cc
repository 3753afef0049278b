// Images of a job of flux are looked for before it is queued: a folder without any is reported at once, not by ranks.

#include "controller/cli/image_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace titan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ImageChecksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root_);
    config_.model.name = "flux";
    config_.training.img_size = 64;
    config_.encoder.max_t5_encoding_len = 24;
  }
  void TearDown() override { fs::remove_all(root_); }

  // Returns a folder with a file of that name.
  std::string folder(const std::string& file, const std::string& text = "") {
    const fs::path path = root_ / ("of-" + file) / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.parent_path().string();
  }
  // Returns the message about a folder, or "" if there is no problem.
  std::string problem(const std::string& path, const std::string& format = "auto") {
    config::DataLoaderSection settings;
    settings.format = format;
    const auto found = check_images(config_, path, settings);
    return found ? found->message : "";
  }

  const fs::path root_ = fs::path(::testing::TempDir()) / "titan-image-checks";
  config::JobConfig config_;
};

TEST_F(ImageChecksTest, AcceptsFilesOfTheFormat) {
  for (const char* file : {"a.tar", "b.parquet", "metadata.jsonl", "c.JPG", "d.webp"})
    EXPECT_EQ(problem(folder(file)), "") << file;
  EXPECT_EQ(problem(folder("a.tar"), "webdataset"), "");
  EXPECT_EQ(problem(folder("c.jpg"), "image_folder"), "");
  EXPECT_EQ(problem(folder("b.parquet"), "parquet_images"), "");
  EXPECT_EQ(problem(folder("a.tar") + "/a.tar"), "");
  EXPECT_EQ(problem("hf://datasets/no/such"), "") << "ranks read a hub";
}

TEST_F(ImageChecksTest, ReportsFoldersWithoutImages) {
  EXPECT_THAT(problem(folder("notes.txt")), HasSubstr("holds no *.tar archive or *.parquet file or image"));
  EXPECT_THAT(problem(folder("a.tar"), "image_folder"), HasSubstr("holds no image (*.jpg"));
  EXPECT_THAT(problem(folder("c.jpg"), "webdataset"), HasSubstr("holds no *.tar archive"));
  fs::create_directories(root_ / "empty");
  EXPECT_NE(problem((root_ / "empty").string()), "");
  EXPECT_NE(problem((root_ / "nowhere").string()), "");
}

TEST_F(ImageChecksTest, ComparesStoredEncodings) {
  const std::string encodings = folder("titan-encodings.json", R"({"image_size": 64, "t5_tokens": 24})");
  EXPECT_THAT(problem(encodings), HasSubstr("set dataloader.format to encodings"));
  EXPECT_EQ(problem(encodings, "encodings"), "");
  config_.training.img_size = 128;
  EXPECT_THAT(problem(encodings, "encodings"), HasSubstr("images of width 64, but training.img_size is 128"));
  config_.training.img_size = 64;
  config_.encoder.max_t5_encoding_len = 32;
  EXPECT_THAT(problem(encodings, "encodings"), HasSubstr("length 24, but encoder.max_t5_encoding_len is 32"));
  EXPECT_THAT(problem(folder("c.jpg"), "encodings"), HasSubstr("holds no titan-encodings.json"));
  EXPECT_THAT(problem(folder("titan-encodings.json", "[]"), "encodings"), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace titan::cli
