// Tests what the encoders read from config.json, and that a wrong or unsupported one is refused by name.

#include "common/plan/encoders/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/io/storage/file.h"
#include "tests/common/plan/encoders/small_t5_config.h"

namespace titan::encoders {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json clip_config() {
  return {{"model_type", "clip_text_model"},
          {"vocab_size", 49408},
          {"hidden_size", 768},
          {"num_hidden_layers", 12},
          {"num_attention_heads", 12},
          {"intermediate_size", 3072},
          {"max_position_embeddings", 77},
          {"layer_norm_eps", 1e-5},
          {"hidden_act", "quick_gelu"},
          {"eos_token_id", 2}};
}

json autoencoder_config() {
  return {{"_class_name", "AutoencoderKL"},
          {"block_out_channels", {128, 256, 512, 512}},
          {"down_block_types", std::vector<std::string>(4, "DownEncoderBlock2D")},
          {"up_block_types", std::vector<std::string>(4, "UpDecoderBlock2D")},
          {"layers_per_block", 2},
          {"latent_channels", 16},
          {"scaling_factor", 0.3611},
          {"shift_factor", 0.1159},
          {"use_quant_conv", false},
          {"use_post_quant_conv", false}};
}

json changed(json config, const std::string& key, json value) {
  config[key] = std::move(value);
  return config;
}

json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

// One wrong configuration, and a part of the message.
struct Wrong {
  json config;
  std::string says;
};

template <typename Read>
void expect_refused(const std::vector<Wrong>& all, Read read) {
  for (const Wrong& wrong : all) {
    const absl::Status status = read(wrong.config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.config;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says)) << wrong.config;
  }
}

TEST(EncoderConfigTest, T5FeedForwardFollowsItsName) {
  const struct {
    json changes;
    bool gated;
    Activation activation;
  } cases[] = {{{{"feed_forward_proj", "gated-gelu"}}, true, Activation::kGeluTanh},
               {{{"feed_forward_proj", "gelu"}}, false, Activation::kGelu},
               {{{"feed_forward_proj", "relu"}}, false, Activation::kRelu},
               {{{"feed_forward_proj", "gated-silu"}}, true, Activation::kSilu},
               {{{"feed_forward_proj", "gated-gelu"}, {"dense_act_fn", "gelu"}}, true, Activation::kGelu},
               {{{"feed_forward_proj", "relu"}, {"is_gated_act", true}}, true, Activation::kRelu}};
  for (const auto& one : cases) {
    json config = testing::small_t5_config();
    config.update(one.changes);
    const T5Options options = t5_options(config).value();
    EXPECT_EQ(options.gated, one.gated) << config;
    EXPECT_EQ(options.activation, one.activation) << config;
  }
}

TEST(EncoderConfigTest, WrongT5IsRefusedByName) {
  const json good = testing::small_t5_config();
  const json gpt = {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}}};
  expect_refused({{gpt, "this is a GPT2LMHeadModel model of type gpt2, expected T5EncoderModel or T5ForConditional"},
                  {autoencoder_config(), "this is a AutoencoderKL model, expected T5EncoderModel"},
                  {clip_config(), "this is a clip_text_model model, expected T5"},
                  {changed(good, "model_type", "umt5"), "of type umt5"},
                  {json::object(), "it names no model"},
                  {without(good, "d_kv"), "d_kv is missing"},
                  {without(good, "feed_forward_proj"), "feed_forward_proj is missing"},
                  {changed(good, "d_model", 0), "d_model is 0"},
                  {changed(good, "num_layers", "two"), "num_layers is \"two\""},
                  {changed(good, "layer_norm_epsilon", 0), "layer_norm_epsilon is 0"},
                  {changed(good, "feed_forward_proj", "gated-mish"), "feed_forward_proj is \"gated-mish\""},
                  {changed(good, "dense_act_fn", "mish"), "dense_act_fn is \"mish\""},
                  {changed(good, "relative_attention_num_buckets", 3), "relative_attention_num_buckets is 3"},
                  {changed(good, "relative_attention_max_distance", 8), "relative_attention_max_distance is 8"}},
                 t5_options);
}

// A CLIPModel's file leaves the defaults of its text encoder out; a text encoder's own file has all keys.
TEST(EncoderConfigTest, ClipTextIsReadAloneOrFromAClip) {
  const ClipTextOptions alone = clip_text_options(clip_config()).value();
  EXPECT_EQ(alone.dim, 768);
  EXPECT_EQ(alone.eos_token, 2);
  const json whole = {{"model_type", "clip"},
                      {"text_config", {{"hidden_size", 64}, {"num_attention_heads", 4}, {"hidden_act", "gelu"}}}};
  const ClipTextOptions part = clip_text_options(whole).value();
  EXPECT_EQ(part.dim, 64);
  EXPECT_EQ(part.num_layers, 12);
  EXPECT_EQ(part.eos_token, 49407);
  EXPECT_EQ(part.activation, Activation::kGelu);
}

TEST(EncoderConfigTest, WrongClipIsRefusedByName) {
  const json good = clip_config();
  expect_refused(
      {{testing::small_t5_config(), "this is a T5EncoderModel model of type t5, expected CLIPTextModel"},
       {changed(good, "model_type", "clip_vision_model"), "clip_vision_model"},
       {{{"model_type", "clip"}}, "text_config is missing"},
       {{{"model_type", "clip"}, {"text_config", {{"hidden_size", -1}}}}, "text_config.hidden_size is -1"},
       {without(good, "hidden_size"), "hidden_size is missing"},
       {changed(good, "hidden_act", "tanh"), "hidden_act is \"tanh\""},
       {changed(good, "num_attention_heads", 5), "num_attention_heads is 5; a divisor of hidden_size (768)"}},
      clip_text_options);
}

TEST(EncoderConfigTest, AutoencoderOfFluxIsRead) {
  const AutoencoderOptions options = autoencoder_options(autoencoder_config()).value();
  EXPECT_EQ(options.channels, AutoencoderOptions().channels);
  EXPECT_EQ(options.latent_channels, 16);
  EXPECT_EQ(options.scale, 0.3611);
  EXPECT_EQ(options.shift, 0.1159);
  EXPECT_EQ(options.downsampling(), 8);
}

TEST(EncoderConfigTest, WrongAutoencoderIsRefusedByName) {
  const json good = autoencoder_config();
  expect_refused({{testing::small_t5_config(), "this is a T5EncoderModel model of type t5, expected AutoencoderKL"},
                  {changed(good, "_class_name", "AutoencoderDC"), "AutoencoderDC"},
                  {changed(good, "use_quant_conv", true), "use_quant_conv is true"},
                  {without(good, "use_post_quant_conv"), "use_post_quant_conv is missing"},
                  {without(good, "latent_channels"), "latent_channels is missing"},
                  {changed(good, "block_out_channels", {128, 100, 512, 512}), "multiples of norm_num_groups (32)"},
                  {changed(good, "block_out_channels", json::array()), "block_out_channels is []"},
                  {changed(good, "block_out_channels", {32}), "down_block_types"},
                  {changed(good, "mid_block_add_attention", false), "mid_block_add_attention is false"},
                  {changed(good, "act_fn", "relu"), "act_fn is \"relu\""},
                  {changed(good, "out_channels", 4), "out_channels is 4"},
                  {changed(good, "latents_mean", {0.5}), "latents_mean is [0.5]"},
                  {changed(good, "scaling_factor", 0), "scaling_factor is 0"}},
                 autoencoder_options);
}

TEST(EncoderConfigTest, FileIsNamedWhenItCannotBeRead) {
  const std::string folder = storage::join_path(::testing::TempDir(), "config." + std::to_string(::getpid()));
  storage::Files& files = storage::posix_files();
  EXPECT_EQ(read_config(files, folder).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(files.make_folders(folder).ok());
  for (const char* text : {"", "[1]", "{\"d_model\": ", "\xff"}) {
    ASSERT_TRUE(storage::atomic_write(files, folder + "/config.json", text).ok());
    const absl::Status status = read_config(files, folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder + "/config.json")) << text;
  }
  ASSERT_TRUE(files.remove_folder(folder).ok());
}

}  // namespace
}  // namespace titan::encoders
