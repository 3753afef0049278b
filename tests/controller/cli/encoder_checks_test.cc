// Flux's encoders are checked before a job is queued: each mistake is reported by its key, and good folders are not.

#include "controller/cli/encoder_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "common/plan/config/assets.h"

namespace titan::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

class EncoderChecksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    if (const char* before = std::getenv("TITAN_ASSETS")) assets_before_ = before;
    setenv("TITAN_ASSETS", (folder_ / "assets-of-nodes").c_str(), 1);
    config_.model.name = "flux";
    config_.encoder.t5_encoder = encoder("t5", "{\"model_type\": \"t5\"}");
    config_.encoder.clip_encoder = encoder("clip", "{\"model_type\": \"clip\"}");
    config_.encoder.autoencoder_path = write("ae.safetensors", "");
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path(working_folder_);
    assets_before_ ? setenv("TITAN_ASSETS", assets_before_->c_str(), 1) : unsetenv("TITAN_ASSETS");
    fs::remove_all(folder_);
  }

  std::string write(const std::string& name, const std::string& text) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  std::string encoder(const std::string& name, const std::string& config) {
    write(name + "/model.safetensors", "");
    return fs::path(write(name + "/config.json", config)).parent_path().string();
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / "titan-encoder-checks";
  const fs::path working_folder_ = fs::current_path();
  std::optional<std::string> assets_before_;
  config::JobConfig config_;
};

TEST_F(EncoderChecksTest, AcceptsFoldersAndAFile) { EXPECT_THAT(check_encoders(config_), IsEmpty()); }

TEST_F(EncoderChecksTest, ReportsWhatIsMissing) {
  config_.encoder.t5_encoder = "/nowhere/t5";
  config_.encoder.clip_encoder = "openai/clip-vit-large-patch14";
  config_.encoder.autoencoder_path = "/nowhere/ae.safetensors";
  const std::vector<EncoderProblem> problems = check_encoders(config_);
  EXPECT_THAT(problems, ElementsAre(Field(&EncoderProblem::key, "encoder.t5_encoder"),
                                    Field(&EncoderProblem::key, "encoder.clip_encoder"),
                                    Field(&EncoderProblem::key, "encoder.autoencoder_path")));
  EXPECT_TRUE(problems[0].is_missing);
  EXPECT_THAT(problems[1].message, HasSubstr("no such folder, nor assets/hf/clip-vit-large-patch14"));
  EXPECT_THAT(problems[1].remedy, HasSubstr("titanctl assets get openai/clip-vit-large-patch14"));
  EXPECT_THAT(problems[2].message, HasSubstr("no such file"));
  EXPECT_THAT(problems[2].remedy, HasSubstr("ae.safetensors"));
  config_.training.test_mode = true;
  EXPECT_THAT(check_encoders(config_), IsEmpty()) << "random encoders need no files";
}

TEST_F(EncoderChecksTest, ReportsFoldersOfAnotherKind) {
  const std::pair<std::string, std::string> cases[] = {
      {"{\"model_type\": \"clip_text_model\"}", "model_type \"clip_text_model\", and a t5 is needed"},
      {"{\"model_type\": 5}", "model_type 5"},
      {"{}", "model_type null"},
      {"[1]", "not a JSON object"},
      {"<html>", "not a JSON object"},
      {"{\"model_type\": \"\xff\"}", "not a JSON object"},
  };
  for (const auto& [text, message] : cases) {
    config_.encoder.t5_encoder = encoder("t5", text);
    EXPECT_THAT(check_encoders(config_), ElementsAre(Field(&EncoderProblem::message, HasSubstr(message)))) << text;
  }
  config_.encoder.t5_encoder = config_.encoder.clip_encoder;
  config_.encoder.clip_encoder = fs::path(write("empty/notes.txt", "")).parent_path().string();
  EXPECT_THAT(check_encoders(config_), ElementsAre(Field(&EncoderProblem::message, HasSubstr("a t5 is needed")),
                                                   Field(&EncoderProblem::message, HasSubstr("no config.json"))));
  config_.encoder.t5_encoder = fs::path(write("light/config.json", "{\"model_type\": \"t5\"}")).parent_path().string();
  EXPECT_THAT(check_encoders(config_)[0].message, HasSubstr("no weights"));
}

// The assets of an installation may have the encoders; the default path of the autoencoder means them, too.
TEST_F(EncoderChecksTest, FindsEncodersInTheAssets) {
  encoder("assets-of-nodes/t5-v1_1-xxl", "{\"model_type\": \"t5\"}");
  config_.encoder.t5_encoder = "google/t5-v1_1-xxl";
  EXPECT_THAT(check_encoders(config_), IsEmpty());
  config_.encoder.autoencoder_path = config::EncoderSection{}.autoencoder_path;
  EXPECT_THAT(check_encoders(config_), ElementsAre(Field(&EncoderProblem::message, HasSubstr("in the assets"))));
  write("assets-of-nodes/autoencoder/ae.safetensors", "");
  EXPECT_THAT(check_encoders(config_), IsEmpty());
}

// Encoders of the installation are checked like folders; their widths must be those of the flavor.
TEST_F(EncoderChecksTest, ReportsOtherKindsAndWidths) {
  const std::string t5 = R"({"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
      "num_heads": 4, "vocab_size": 133, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false})";
  encoder("assets-of-nodes/t5-tiny", t5);
  config_.model.flavor = "flux-tiny";
  config_.encoder.t5_encoder = "titan/t5-tiny";
  EXPECT_THAT(check_encoders(config_), IsEmpty());
  config_.encoder.clip_encoder = "titan/t5-tiny";
  config_.encoder.autoencoder_path = "titan/t5-tiny";
  EXPECT_THAT(check_encoders(config_),
              ElementsAre(Field(&EncoderProblem::message, HasSubstr("model_type \"t5\", and a clip_text_model")),
                          Field(&EncoderProblem::message, HasSubstr("model_type \"t5\", and an autoencoder"))));
  config_.encoder.clip_encoder = encoder("clip", "{\"model_type\": \"clip\"}");
  config_.encoder.autoencoder_path = encoder("vae", "{}");
  config_.model.flavor = "flux-dev";
  EXPECT_THAT(check_encoders(config_),
              ElementsAre(Field(&EncoderProblem::message, HasSubstr("its width is 64, but the model reads 4096"))));
}

// An autoencoder may be a folder as diffusers writes it; the small one is in the assets.
TEST_F(EncoderChecksTest, AcceptsAFolderAsAutoencoder) {
  config_.encoder.autoencoder_path = encoder("vae", "{}");
  EXPECT_THAT(check_encoders(config_), IsEmpty());
  fs::remove(folder_ / "vae/model.safetensors");
  EXPECT_THAT(check_encoders(config_), ElementsAre(Field(&EncoderProblem::message, HasSubstr("holds no weights"))));
  config_.encoder.autoencoder_path = "titan/autoencoder-tiny";
  EXPECT_THAT(check_encoders(config_),
              ElementsAre(AllOf(Field(&EncoderProblem::message, HasSubstr("nor autoencoder-tiny in the assets")),
                                Field(&EncoderProblem::remedy, HasSubstr("deploy/make_image_assets.sh")))));
  encoder("assets-of-nodes/autoencoder-tiny", "{}");
  EXPECT_THAT(check_encoders(config_), IsEmpty());
}

TEST_F(EncoderChecksTest, FindsDownloadsByName) {
  const auto found = [this](const std::string& t5, const std::string& autoencoder) {
    config::EncoderSection encoders{.t5_encoder = t5, .autoencoder_path = autoencoder};
    config::find_downloads(encoders);
    const auto relative = [](const std::string& path) {
      return std::filesystem::path(path).lexically_proximate(std::filesystem::current_path()).string();
    };
    return std::pair(t5 == encoders.t5_encoder ? "" : relative(encoders.t5_encoder),
                     autoencoder == encoders.autoencoder_path ? "" : relative(encoders.autoencoder_path));
  };
  const std::string t5 = "google/t5-v1_1-xxl", flux = "black-forest-labs/FLUX.1-schnell";
  EXPECT_EQ(found(t5, flux), std::pair(std::string(), std::string()));
  encoder("assets/hf/t5-v1_1-xxl", "{}");
  write("assets/hf/FLUX.1-schnell/vae/config.json", "{}");
  EXPECT_EQ(found(t5, flux),
            std::pair(std::string("assets/hf/t5-v1_1-xxl"), std::string("assets/hf/FLUX.1-schnell/vae")));
  encoder("google/t5-v1_1-xxl", "{}");
  write("assets/hf/FLUX.1-schnell/ae.safetensors", "");
  EXPECT_EQ(found(t5, flux), std::pair(t5, std::string("assets/hf/FLUX.1-schnell/ae.safetensors")));
  EXPECT_EQ(found("/google/t5-v1_1-xxl", "FLUX.1-schnell/ae.safetensors"), std::pair(std::string(), std::string()));
}

// An autoencoder may be a folder, or a repository's name; a job whose data is stored encodings needs no encoders.
TEST_F(EncoderChecksTest, AcceptsFoldersAndNamesOfAutoencoders) {
  config_.encoder.autoencoder_path = "black-forest-labs/FLUX.1-schnell";
  EXPECT_THAT(
      check_encoders(config_),
      ElementsAre(Field(&EncoderProblem::remedy, HasSubstr("titanctl assets get black-forest-labs/FLUX.1-schnell"))));
  config_.encoder.autoencoder_path = encoder("ae", "{}");
  EXPECT_THAT(check_encoders(config_), IsEmpty());
  config_.encoder = {.t5_encoder = "/missing", .clip_encoder = "/missing", .autoencoder_path = "/missing"};
  EXPECT_EQ(check_encoders(config_).size(), 3u);
  config_.training.dataloader.format = "encodings";
  EXPECT_THAT(check_encoders(config_), IsEmpty());
  config_.validation.enable = true;
  EXPECT_EQ(check_encoders(config_).size(), 3u);
}

}  // namespace
}  // namespace titan::cli
