// Tests the parts of GGUF exports that no debug model reaches: DeepSeek V3's bias, cut heads, unusual values of Q8_0,
// and alignment.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/plan/models/registry.h"
#include "common/plan/models/spec_json.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_metadata.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_names.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_values.h"

namespace titan::checkpoint::gguf {
namespace {

nlohmann::json latent_config(const char* type) {
  return {{"model_type", type}, {"num_attention_heads", 3}, {"qk_nope_head_dim", 4}, {"v_head_dim", 2}};
}

TEST(GgufNames, OnlyTheThirdGenerationHasABiasOfScores) {
  const auto third = sources_of(latent_config("deepseek_v3"), "deepseek2", "layers.7.moe.expert_bias", {64});
  ASSERT_TRUE(third.ok());
  ASSERT_EQ(third->size(), 1u);
  EXPECT_EQ((*third)[0].name, "blk.7.exp_probs_b.bias");
  EXPECT_TRUE(sources_of(latent_config("deepseek_v2"), "deepseek2", "layers.7.moe.expert_bias", {64})->empty());
}

TEST(GgufNames, CutsEachHeadIntoKeysAndValues) {
  const at::Tensor weight = at::arange(18 * 5).view({18, 5});
  const auto sources =
      sources_of(latent_config("deepseek_v3"), "deepseek2", "layers.0.attention.wkv_b.weight", {18, 5});
  ASSERT_TRUE(sources.ok());
  ASSERT_EQ(sources->size(), 2u);
  const at::Tensor keys = take((*sources)[0], weight), values = take((*sources)[1], weight);
  ASSERT_EQ(keys.sizes(), (std::vector<int64_t>{3, 5, 4}));
  ASSERT_EQ(values.sizes(), (std::vector<int64_t>{3, 2, 5}));
  for (int64_t head = 0; head < 3; ++head) {
    EXPECT_TRUE(at::equal(keys[head], weight.narrow(0, head * 6, 4).t()));
    EXPECT_TRUE(at::equal(values[head], weight.narrow(0, head * 6 + 4, 2)));
  }
}

TEST(GgufNames, UnknownParametersAndModelsAreNamed) {
  const auto parameter = sources_of(latent_config("deepseek_v3"), "deepseek2", "layers.0.attention.gate.weight", {4});
  EXPECT_NE(std::string(parameter.status().message()).find("layers.0.attention.gate.weight"), std::string::npos);
  EXPECT_FALSE(architecture_of({{"model_type", "llama4_text"}}).ok());
  EXPECT_FALSE(architecture_of({{"model_type", "qwen3_moe"}, {"norm_topk_prob", false}}).ok());
  EXPECT_FALSE(architecture_of({{"model_type", "deepseek_v3"}, {"rope_interleave", false}}).ok());
  Metadata metadata;
  EXPECT_FALSE(add_model({{"rope_scaling", {{"rope_type", "longrope"}}}}, "llama", metadata).ok());
}

// A file that llama.cpp would compute in another way is not written.
TEST(GgufNames, OptionsWithoutAKeyAreNamed) {
  models::ModelSpec spec = models::find("llama3", "debugmodel").value();
  EXPECT_TRUE(check_options(models::to_json(spec), "llama").ok());
  EXPECT_TRUE(check_options({}, "llama").ok());
  spec.mlp_bias = true;
  EXPECT_TRUE(check_options(models::to_json(spec), "llama").ok());
  EXPECT_FALSE(check_options(models::to_json(spec), "qwen3").ok());
  spec.logit_softcap = 30;
  const std::string message(check_options(models::to_json(spec), "llama").message());
  EXPECT_NE(message.find("logit_softcap"), std::string::npos) << message;
  const nlohmann::json windows = models::to_json(models::find("gpt_oss", "debugmodel").value());
  EXPECT_TRUE(check_options(windows, "gpt-oss").ok());
  EXPECT_FALSE(check_options(windows, "llama").ok());
}

TEST(GgufValues, RoundsHalvesAwayFromZeroAndKeepsWhatIsNotFinite) {
  at::Tensor values = at::zeros({3, kBlock});
  values[0][0] = 127;  // The scale is 1.
  values[0][1] = 2.5;
  values[0][2] = -2.5;
  values[2][5] = std::numeric_limits<float>::quiet_NaN();
  Narrowing narrowing;
  const at::Tensor bytes = encode(values, Type::kQ8_0, narrowing);
  ASSERT_EQ(bytes.numel(), 3 * 34);
  const auto* block = static_cast<const int8_t*>(bytes.const_data_ptr());
  EXPECT_EQ(block[2], 127);
  EXPECT_EQ(block[3], 3);
  EXPECT_EQ(block[4], -3);
  for (int i = 0; i < 34; ++i) EXPECT_EQ(block[34 + i], 0) << i;  // A block of zeros.
  EXPECT_TRUE(narrowing.has_nonfinite());
  EXPECT_TRUE(std::isnan(static_cast<float>(*reinterpret_cast<const at::Half*>(block + 68))));
}

TEST(GgufValues, CountsScalesBeyondFloat16) {
  Narrowing narrowing;
  encode(at::full({1, kBlock}, 1e9), Type::kQ8_0, narrowing);
  EXPECT_TRUE(narrowing.overflows());
}

TEST(GgufFile, EachTensorBeginsAligned) {
  EXPECT_EQ(padding_after(0), 0);
  EXPECT_EQ(padding_after(33), 31);
  EXPECT_EQ(bytes_of({.name = "a", .shape = {2, 64}, .type = Type::kQ8_0}), 4 * 34);
  Metadata metadata;
  metadata.add("general.name", "a name");
  EXPECT_EQ(header(metadata, {{.name = "a", .shape = {3}, .type = Type::kF32}}).size() % kAlignment, 0u);
}

}  // namespace
}  // namespace titan::checkpoint::gguf
