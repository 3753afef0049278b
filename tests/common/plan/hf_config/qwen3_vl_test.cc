// Tests reading the config.json of Qwen3-VL. qwen3_vl_model_oracle_test.py reads those that transformers writes.
#include "common/plan/hf_config/qwen3_vl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/hf_config/model_match.h"
#include "common/plan/models/registry.h"

namespace titan::hf_config {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The released 2B.
json released() {
  return json::parse(R"({"architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655,
    "model_type": "qwen3_vl", "tie_word_embeddings": true, "transformers_version": "4.57.0.dev0",
    "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
      "intermediate_size": 6144, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
      "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
      "rope_theta": 5000000, "tie_word_embeddings": true, "use_cache": true, "vocab_size": 151936},
    "video_token_id": 151656, "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    "vision_config": {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh",
      "hidden_size": 1024, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096,
      "model_type": "qwen3_vl", "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2048,
      "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}})");
}

TEST(HfQwen3VlTest, ReadsAReleasedModel) {
  const auto read = read_qwen3_vl(released());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->text.name, "qwen3");
  EXPECT_EQ(read->text.dim, 2048);
  EXPECT_EQ(read->text.ffn_hidden, 6144);
  EXPECT_EQ(read->text.rope_theta, 5e6);
  EXPECT_TRUE(read->text.tied_embeddings && read->text.qk_norm);
  EXPECT_THAT(read->vl.mrope_section, ElementsAre(24, 20, 20));
  EXPECT_THAT(read->vl.vision.deepstack_layers, ElementsAre(5, 11, 17));
  EXPECT_EQ(read->vl.vision.n_layers, 24);
  EXPECT_EQ(read->vl.vision.position_side, 48);
  EXPECT_EQ(read->vl.image_token, 151655);
  EXPECT_TRUE(read->notes.empty());
}

// transformers 5 has the positions in rope_parameters.
TEST(HfQwen3VlTest, ReadsTheNewerTableOfPositions) {
  json config = released();
  json& text = config["text_config"];
  text["rope_parameters"] = text["rope_scaling"];
  text["rope_parameters"]["rope_theta"] = 1e6;
  text["rope_parameters"]["mrope_section"] = {20, 22, 22};
  text.erase("rope_scaling");
  text.erase("rope_theta");
  const auto read = read_qwen3_vl(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->text.rope_theta, 1e6);
  EXPECT_THAT(read->vl.mrope_section, ElementsAre(20, 22, 22));
}

TEST(HfQwen3VlTest, RefusalsNameTheKey) {
  const auto refusal = [](const char* pointer, const json& value) {
    json config = released();
    config[json::json_pointer(pointer)] = value;
    const auto status = read_qwen3_vl(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pointer << " " << value;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal("/model_type", "qwen2_5_vl"),
            "config.json: model_type is \"qwen2_5_vl\"; qwen3_vl, qwen3_vl_moe is supported");
  EXPECT_EQ(refusal("/vision_config/hidden_act", "gelu"),
            "config.json: vision_config.hidden_act is \"gelu\"; only \"gelu_pytorch_tanh\" is supported");
  EXPECT_EQ(refusal("/vision_config/num_position_embeddings", 2300),
            "config.json: vision_config.num_position_embeddings is 2300; only a square number is supported");
  EXPECT_THAT(refusal("/vision_config/out_hidden_size", 4096), HasSubstr("out_dim: 4096 is not the text's dim 2048"));
  EXPECT_THAT(refusal("/vision_config/deepstack_visual_indexes", {5, 24}), HasSubstr("24 is not an ascending layer"));
  EXPECT_THAT(refusal("/vision_config/deepstack_visual_indexes", 5), HasSubstr("a list of integers is supported"));
  EXPECT_THAT(refusal("/text_config/rope_scaling/mrope_section", {24, 40}), HasSubstr("three integers above 0"));
  EXPECT_THAT(refusal("/text_config/rope_scaling/mrope_interleaved", false), HasSubstr("only mrope_interleaved true"));
  EXPECT_THAT(refusal("/text_config/rope_scaling/rope_type", "dynamic"), HasSubstr("dynamic"));
  EXPECT_THAT(refusal("/text_config/attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(refusal("/tie_word_embeddings", false), HasSubstr("the same as in text_config"));
  for (const char* key : {"depth", "hidden_size", "num_heads", "patch_size", "spatial_merge_size", "in_channels"}) {
    for (const json& value : {json(0), json(-4), json("many"), json(1e30), json::array()})
      refusal((std::string("/vision_config/") + key).c_str(), value);
  }
  for (const char* part : {"/text_config", "/vision_config"}) refusal(part, 3);
  EXPECT_FALSE(read_qwen3_vl(json::array()).ok());
  EXPECT_FALSE(read_qwen3_vl(json::object()).ok());
}

TEST(HfQwen3VlTest, DifferencesOfTwoModels) {
  const HfModel one = *read_model(released());
  EXPECT_EQ(one.spec.name, "qwen3_vl");
  EXPECT_EQ(one.model_type, "qwen3_vl");
  EXPECT_TRUE(compare(one, one).empty());
  const models::ModelSpec flavor = *models::find("qwen3_vl", "2B");
  EXPECT_TRUE(compare(one, {.spec = flavor, .model_type = model_type_of(flavor)}).empty());
  HfModel other = one;
  other.spec.n_layers = 30;
  other.spec.qwen3_vl->vision.deepstack_layers = {5, 11};
  other.spec.qwen3_vl->image_token = 7;
  other.spec.qwen3_vl->mrope_section = {20, 22, 22};
  EXPECT_EQ(text_of(compare(one, other)),
            "num_hidden_layers 28, this model has 30; image_token_id 151655, this model has 7; "
            "rope_scaling.mrope_section [24,20,20], this model has [20,22,22]; vision_config.deepstack_visual_indexes "
            "[5,11,17], this model has [5,11]");
}

}  // namespace
}  // namespace titan::hf_config
