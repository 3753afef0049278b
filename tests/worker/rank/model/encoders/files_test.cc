// Tests which files of weights the encoders read, and that wrong or damaged ones are refused before anything is loaded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/rank/model/encoders/small_models.h"
#include "worker/rank/model/encoders/autoencoder_files.h"
#include "worker/rank/model/encoders/clip_text.h"
#include "worker/rank/model/encoders/parameters.h"
#include "worker/rank/model/encoders/t5.h"

namespace titan::encoders {
namespace {

using checkpoint::TensorEntry;
using ::testing::HasSubstr;
using testing::write_zeros;

class EncoderFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        storage::join_path(::testing::TempDir(), "encoders." + std::to_string(::getpid()) + "." +
                                                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(files_.remove_folder(folder_).ok());
    ASSERT_TRUE(files_.make_folders(folder_).ok());
  }
  void TearDown() override { files_.remove_folder(folder_).IgnoreError(); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(storage::atomic_write(files_, path(name), text).ok());
  }
  absl::Status load_at(const std::string& place, const std::vector<nn::Parameter*>& parameters,
                       const WeightNames& names) {
    auto opened = open_weights(files_, place);
    if (!opened.ok()) return opened.status();
    return load(FrozenWeights(*std::move(opened), names), parameters, {});
  }
  // Loads the small T5 from a file with these tensors.
  absl::Status load_t5_of(const std::vector<TensorEntry>& entries) {
    write_zeros(path("model.safetensors"), entries);
    const TextEncoder encoder = build_t5(testing::small_t5());
    return load_at(folder_, encoder.parameters(), encoder.names());
  }

  storage::Files& files_ = storage::posix_files();
  std::string folder_;
};

std::vector<TensorEntry> entries_of(const std::vector<nn::Parameter*>& parameters) {
  std::vector<TensorEntry> entries;
  for (const nn::Parameter* parameter : parameters) {
    entries.push_back({.key = parameter->fqn, .dtype = c10::ScalarType::Half, .shape = parameter->global_shape});
  }
  return entries;
}

std::vector<TensorEntry> t5_entries() { return entries_of(build_t5(testing::small_t5()).parameters()); }

void expect_failure(const absl::Status& status, absl::StatusCode code, const std::string& says) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
}

TEST_F(EncoderFilesTest, TensorsThatDoNotFitAreNamed) {
  constexpr auto kUnfit = absl::StatusCode::kFailedPrecondition;
  EXPECT_TRUE(load_t5_of(t5_entries()).ok());

  std::vector<TensorEntry> entries = t5_entries();
  std::erase_if(entries, [](const auto& one) { return one.key == "encoder.final_layer_norm.weight"; });
  expect_failure(load_t5_of(entries), kUnfit, "no tensor encoder.final_layer_norm.weight of T5EncoderModel");

  std::erase_if(entries, [](const auto& one) { return absl::StartsWith(one.key, "encoder."); });
  entries.push_back({.key = "decoder.final_layer_norm.weight", .shape = {10}});
  expect_failure(load_t5_of(entries), kUnfit, "it has only the weights of the decoder");

  entries = t5_entries();
  entries[2].shape = {12, 11};
  expect_failure(load_t5_of(entries), kUnfit,
                 "needs [12, 10], tensor encoder.block.0.layer.0.SelfAttention.q.weight is [12, 11]");

  entries = t5_entries();
  entries.push_back({.key = "encoder.block.2.layer.0.SelfAttention.q.weight", .shape = {12, 10}});
  expect_failure(load_t5_of(entries), kUnfit, "no place for 1 of its tensors: encoder.block.2");

  entries = t5_entries();
  entries[2].dtype = c10::ScalarType::Char;
  expect_failure(load_t5_of(entries), kUnfit, "is stored as I8");
}

TEST_F(EncoderFilesTest, OneMissingEmbeddingNamesBothOfItsNames) {
  std::vector<TensorEntry> entries = t5_entries();
  std::erase_if(entries, [](const auto& one) { return one.key == "shared.weight"; });
  expect_failure(load_t5_of(entries), absl::StatusCode::kFailedPrecondition,
                 "no tensor shared.weight or encoder.embed_tokens.weight");
}

TEST_F(EncoderFilesTest, OtherFormatsAndMissingFilesAreRefused) {
  const TextEncoder encoder = build_t5(testing::small_t5());
  const auto load_from = [&](const std::string& place) {
    return load_at(place, encoder.parameters(), encoder.names());
  };
  expect_failure(load_from(path("nowhere")), absl::StatusCode::kNotFound, "nowhere");
  expect_failure(load_from(folder_), absl::StatusCode::kNotFound, "no *.safetensors");
  write("pytorch_model.bin", "PK");
  expect_failure(load_from(folder_), absl::StatusCode::kFailedPrecondition, "pytorch_model.bin: only safetensors");
  expect_failure(load_from(path("pytorch_model.bin")), absl::StatusCode::kFailedPrecondition, "only safetensors");
}

TEST_F(EncoderFilesTest, DamagedFilesAreDataLoss) {
  const TextEncoder encoder = build_t5(testing::small_t5());
  write_zeros(path("model.safetensors"), t5_entries());
  const std::string good = storage::read_file(files_, path("model.safetensors")).value();
  const std::string longest(8, '\xff');
  for (const std::string& bad : {std::string(), good.substr(0, 5), good.substr(0, 200), good.substr(0, good.size() - 1),
                                 longest + good.substr(8)}) {
    write("model.safetensors", bad);
    expect_failure(load_at(folder_, encoder.parameters(), encoder.names()), absl::StatusCode::kDataLoss,
                   path("model.safetensors"));
    EXPECT_FALSE(encoder.parameters()[0]->weight.defined());
  }
}

// Other variants of the weights are ignored next to the one that transformers reads.
TEST_F(EncoderFilesTest, VariantsAndOtherFilesAreIgnored) {
  write("pytorch_model.bin", "PK");
  write_zeros(path("model.fp16.safetensors"), t5_entries());
  write_zeros(path("flux1-dev.safetensors"), {{.key = "img_in.weight", .shape = {2}}});
  EXPECT_TRUE(load_t5_of(t5_entries()).ok());
}

TEST_F(EncoderFilesTest, TypesOtherThanThreeAreRefused) {
  const TextEncoder encoder = build_t5(testing::small_t5());
  expect_failure(draw(1, encoder.parameters(), {.dtype = at::kHalf}), absl::StatusCode::kInvalidArgument,
                 "not in Half");
}

class AutoencoderFilesTest : public EncoderFilesTest {
 protected:
  std::vector<TensorEntry> both_halves(const AutoencoderOptions& options) {
    ImageEncoder encoder(options);
    ImageDecoder decoder(options);
    std::vector<TensorEntry> entries = entries_of(testing::parameters_of(encoder));
    for (TensorEntry& entry : entries_of(testing::parameters_of(decoder))) entries.push_back(std::move(entry));
    return entries;
  }
  absl::StatusOr<AutoencoderOptions> inferred(const std::vector<TensorEntry>& entries) {
    write_zeros(path("ae.safetensors"), entries);
    auto opened = open_weights(files_, path("ae.safetensors"));
    if (!opened.ok()) return opened.status();
    return autoencoder_options_at(files_, path("ae.safetensors"), **opened);
  }
};

TEST_F(AutoencoderFilesTest, SizesFollowFromEitherHalf) {
  const AutoencoderOptions options{
      .image_channels = 4, .channels = {32, 64, 96}, .blocks_per_level = 3, .latent_channels = 5};
  for (const std::string half : {"encoder.", "decoder.", "both"}) {
    std::vector<TensorEntry> entries = both_halves(options);
    if (half != "both") std::erase_if(entries, [&](const auto& one) { return !absl::StartsWith(one.key, half); });
    const AutoencoderOptions found = inferred(entries).value();
    EXPECT_EQ(found.channels, options.channels) << half;
    EXPECT_EQ(found.blocks_per_level, 3) << half;
    EXPECT_EQ(found.latent_channels, 5) << half;
    EXPECT_EQ(found.image_channels, 4) << half;
  }
}

TEST_F(AutoencoderFilesTest, WeightsOfAnotherModelAreRefused) {
  constexpr auto kUnfit = absl::StatusCode::kFailedPrecondition;
  expect_failure(inferred({{.key = "img_in.weight", .shape = {2}}}).status(), kUnfit, "not an autoencoder's weights");
  expect_failure(inferred(t5_entries()).status(), kUnfit, "not an autoencoder's weights");
  expect_failure(inferred(both_halves(testing::small_autoencoder())).status(), kUnfit, "4 channels are not a multiple");

  const AutoencoderOptions options{.channels = {32, 32}, .blocks_per_level = 1, .latent_channels = 2};
  std::vector<TensorEntry> entries = both_halves(options);
  entries.push_back({.key = "quant_conv.weight", .shape = {4, 4, 1, 1}});
  ASSERT_TRUE(inferred(entries).ok());
  ImageEncoder encoder(options);
  const WeightNames names = autoencoder_names(options, Half::kEncoder);
  expect_failure(load_at(path("ae.safetensors"), testing::parameters_of(encoder), names), kUnfit, "quant_conv.weight");

  entries.pop_back();
  std::erase_if(entries, [](const auto& one) { return absl::StartsWith(one.key, "encoder."); });
  ASSERT_TRUE(inferred(entries).ok());
  expect_failure(load_at(path("ae.safetensors"), testing::parameters_of(encoder), names), kUnfit,
                 "it has only the weights of the decoder");
  ImageDecoder decoder(options);
  EXPECT_TRUE(
      load_at(path("ae.safetensors"), testing::parameters_of(decoder), autoencoder_names(options, Half::kDecoder))
          .ok());
}

}  // namespace
}  // namespace titan::encoders
