#include "common/plan/hf_config/vision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/models/vision.h"

namespace titan::hf_config {
namespace {

using nlohmann::json;

const json kTower = {{"model_type", "siglip2_vision_model"},
                     {"hidden_size", 96},
                     {"intermediate_size", 200},
                     {"num_hidden_layers", 5},
                     {"num_attention_heads", 6},
                     {"num_channels", 1},
                     {"num_patches", 49},
                     {"patch_size", 14},
                     {"layer_norm_eps", 1e-5}};

TEST(HfVisionTest, ReadsATowerAloneAndNested) {
  for (const json& config : {kTower, json{{"model_type", "llava"}, {"vision_config", kTower}}}) {
    const auto read = read_vision(config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->spec.dim, 96);
    EXPECT_EQ(read->spec.ffn_hidden, 200);
    EXPECT_EQ(read->spec.n_layers, 5);
    EXPECT_EQ(read->spec.n_heads, 6);
    EXPECT_EQ(read->spec.channels, 1);
    EXPECT_EQ(read->spec.position_side, 7);
    EXPECT_EQ(read->spec.patch_size, 14);
    EXPECT_EQ(read->spec.norm_eps, 1e-5);
    EXPECT_EQ(read->spec.out_dim, 0);
    EXPECT_TRUE(read->notes.empty());
  }
}

// vision_oracle_test compares these with transformers' class.
TEST(HfVisionTest, MissingKeysHaveTheClassesDefaults) {
  for (const json& config : {json{{"model_type", "siglip2_vision_model"}},
                             json{{"model_type", "siglip2"}, {"vision_config", json::object()}}}) {
    const auto read = read_vision(config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(models::parameter_count(read->spec), models::parameter_count(models::VisionSpec{}));
  }
}

TEST(HfVisionTest, DropoutIsNoted) {
  json config = kTower;
  config["attention_dropout"] = 0.1;
  const auto read = read_vision({{"vision_config", config}});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->notes,
              ::testing::ElementsAre("vision_config.attention_dropout 0.1 is not applied: Titan has no dropout"));
}

TEST(HfVisionTest, RefusalsNameTheKey) {
  const auto refusal = [](const char* key, const json& value) {
    json config = kTower;
    config[key] = value;
    const auto status = read_vision(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal("model_type", "siglip_vision_model"),
            "config.json: model_type is \"siglip_vision_model\"; only siglip2_vision_model is supported");
  EXPECT_EQ(refusal("num_patches", 50), "config.json: num_patches is 50; only a square number is supported");
  EXPECT_EQ(refusal("num_attention_heads", 5),
            "config.json: num_attention_heads is 5; only a divisor of hidden_size 96 is supported");
  EXPECT_EQ(refusal("hidden_act", "gelu"),
            "config.json: hidden_act is \"gelu\"; only \"gelu_pytorch_tanh\" is supported");
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "num_patches"}) {
    for (const json& value : {json(0), json(-4), json("many"), json(1e30), json::array()}) refusal(key, value);
  }
  EXPECT_FALSE(read_vision(json::array()).ok());
  EXPECT_FALSE(read_vision(json::object()).ok()) << "no model type";
  EXPECT_FALSE(read_vision({{"vision_config", 3}}).ok());
  EXPECT_FALSE(read_vision({{"model_type", "llava"}, {"vision_config", json::object()}}).ok());
}

}  // namespace
}  // namespace titan::hf_config
