// Estimates find the numbers of a job's encoders from a folder, a repository's name, or the width that the model reads.

#include "common/plan/encoders/released.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/io/storage/file.h"
#include "common/plan/encoders/cost.h"

namespace titan::encoders {
namespace {

using ::testing::HasSubstr;

config::EncoderSection section(const std::string& t5, const std::string& clip) {
  config::EncoderSection encoder;
  encoder.t5_encoder = t5;
  encoder.clip_encoder = clip;
  encoder.autoencoder_path = "/nowhere/ae.safetensors";
  return encoder;
}

TEST(EncoderOptionsTest, ReleasedEncodersHaveTheirPublishedSizes) {
  const EncoderOptions xxl =
      find_encoder_options(section("google/t5-v1_1-xxl", "openai/clip-vit-large-patch14"), {}).value();
  EXPECT_EQ(parameter_count(xxl.t5).elements, 4762310656);
  EXPECT_EQ(parameter_count(xxl.clip).elements, 123060480);
  EXPECT_EQ(encoder_parameter_count(xxl.images).elements + decoder_parameter_count(xxl.images).elements, 83819683);
  for (const auto& [size, width] : {std::pair("small", 512), {"base", 768}, {"large", 1024}, {"xl", 2048}}) {
    const auto found =
        find_encoder_options(section(std::string("google/t5-v1_1-") + size, "openai/clip-vit-base-patch16"), {});
    EXPECT_EQ(found->t5.dim, width);
    EXPECT_EQ(found->clip.dim, 512);
  }
}

TEST(EncoderOptionsTest, FolderOfTheNodesIsTakenForTheReleasedEncoderOfItsWidth) {
  const EncoderOptions found =
      find_encoder_options(section("/nodes/t5", "/nodes/clip"), {.flavor = "flux-dev"}).value();
  EXPECT_EQ(found.t5.dim, 4096);
  EXPECT_EQ(found.clip.dim, 768);
  const absl::Status missing = find_encoder_options(section("/nodes/t5", "/nodes/clip"), {.txt_width = 32}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("encoder.t5_encoder: /nodes/t5"));
}

// Those of the installation have the numbers of their files.
TEST(EncoderOptionsTest, InstallationsEncodersAreKnown) {
  config::EncoderSection named = section("titan/t5-tiny", "titan/clip-tiny");
  named.autoencoder_path = "titan/autoencoder-tiny";
  const EncoderOptions released = released_encoder_options(named, {}).value();
  const std::string assets = std::string(std::getenv("TITAN_DEPS")) + "/assets/";
  config::EncoderSection folders = section(assets + "t5-tiny", assets + "clip-tiny");
  folders.autoencoder_path = assets + "autoencoder-tiny";
  const EncoderOptions read = find_encoder_options(folders, {}).value();
  EXPECT_EQ(parameter_count(released.t5).elements, parameter_count(read.t5).elements);
  EXPECT_EQ(parameter_count(released.clip).elements, parameter_count(read.clip).elements);
  EXPECT_EQ(encoder_parameter_count(released.images).elements, encoder_parameter_count(read.images).elements);
}

TEST(EncoderOptionsTest, FilesComeFirstAndAreNamedWhenTheyAreWrong) {
  storage::Files& files = storage::posix_files();
  const std::string folder = storage::join_path(::testing::TempDir(), "released." + std::to_string(::getpid()));
  ASSERT_TRUE(files.make_folders(folder).ok());
  const auto write = [&](const std::string& text) {
    ASSERT_TRUE(storage::atomic_write(files, folder + "/config.json", text).ok());
  };
  write(R"({"model_type": "t5", "vocab_size": 9, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4, "d_ff": 16,
            "feed_forward_proj": "gated-gelu"})");
  EXPECT_EQ(find_encoder_options(section(folder, "/nodes/clip"), {})->t5.dim, 8);
  EXPECT_EQ(released_encoder_options(section(folder, "/nodes/clip"), {})->t5.dim, 4096);
  write(R"({"model_type": "t5", "vocab_size": 9})");
  const absl::Status wrong = find_encoder_options(section(folder, "/nodes/clip"), {}).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("encoder.t5_encoder: config.json: d_model is missing"));
  ASSERT_TRUE(files.remove_folder(folder).ok());
}

}  // namespace
}  // namespace titan::encoders
