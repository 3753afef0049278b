#include "common/plan/meta_config/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"
#include "common/plan/models/spec_checks.h"

namespace titan::meta_config {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Files as released: Llama 2 7B and 70B, Llama 3 8B, Llama 3.1 405B on 8 files, Llama 3.2 1B, Llama 4 Scout.
const json kLlama2 = {{"dim", 4096},    {"multiple_of", 256}, {"n_heads", 32},
                      {"n_layers", 32}, {"norm_eps", 1e-5},   {"vocab_size", -1}};
const json kLlama2Large = {{"dim", 8192},     {"multiple_of", 4096}, {"ffn_dim_multiplier", 1.3}, {"n_heads", 64},
                           {"n_kv_heads", 8}, {"n_layers", 80},      {"norm_eps", 1e-5},          {"vocab_size", -1}};
const json kLlama3 = {{"dim", 4096},          {"ffn_dim_multiplier", 1.3},
                      {"multiple_of", 1024},  {"n_heads", 32},
                      {"n_kv_heads", 8},      {"n_layers", 32},
                      {"norm_eps", 1e-5},     {"rope_theta", 500000.0},
                      {"vocab_size", 128256}, {"use_scaled_rope", true}};
const json kLlama4 = {{"dim", 5120},
                      {"n_layers", 48},
                      {"n_heads", 40},
                      {"n_kv_heads", 8},
                      {"vocab_size", 202048},
                      {"ffn_dim_multiplier", 1.2},
                      {"ffn_exp", 4.0},
                      {"multiple_of", 2048},
                      {"norm_eps", 1e-5},
                      {"rope_theta", 500000.0},
                      {"use_scaled_rope", true},
                      {"use_qk_norm", true},
                      {"nope_layer_interval", 4},
                      {"attention_chunk_size", 8192},
                      {"moe_args",
                       {{"num_experts", 16},
                        {"capacity_factor", 1.0},
                        {"auto_scale_F", true},
                        {"top_k", 1},
                        {"interleave_moe_layer_step", 1}}},
                      {"vision_args", {{"dim", 1408}}}};
const json kMistral = {{"dim", 5120},       {"n_layers", 40},       {"head_dim", 128},  {"hidden_dim", 14336},
                       {"n_heads", 32},     {"n_kv_heads", 8},      {"norm_eps", 1e-5}, {"vocab_size", 131072},
                       {"rope_theta", 1e6}, {"max_seq_len", 128000}};

json with(json params, const char* key, const json& value) {
  params[key] = value;
  return params;
}

// A released file gives the flavor of the same model, number for number.
void expect_flavor(const json& params, const char* name, const char* flavor) {
  const auto read = read_params(params);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto want = models::find(name, flavor);
  ASSERT_TRUE(want.ok());
  EXPECT_EQ(read->spec.name, name);
  EXPECT_EQ(read->spec.max_seq_len, want->max_seq_len);
  for (const auto& one : models::differences(models::to_json(read->spec), *want))
    ADD_FAILURE() << flavor << ": " << one.name << " " << one.there << ", not " << one.here;
}

TEST(MetaParamsTest, ReleasesAreTheirFlavors) {
  expect_flavor(kLlama3, "llama3", "8B");
  json large = kLlama3;
  large.update(
      {{"dim", 16384}, {"ffn_dim_multiplier", 1.2}, {"multiple_of", 4096}, {"n_heads", 128}, {"n_layers", 126}});
  expect_flavor(large, "llama3", "405B");
  json small = kLlama3;
  small.update({{"dim", 2048}, {"ffn_dim_multiplier", 1.5}, {"multiple_of", 256}, {"n_layers", 16}});
  expect_flavor(small, "llama3", "1B");
  json tuned = kLlama4;
  tuned["attn_temperature_tuning"] = true;
  expect_flavor(json{{"model", tuned}}, "llama4", "17bx16e_released");
}

// Meta's dense feed-forwards and Mistral's stated one.
TEST(MetaParamsTest, NumbersThatNoFlavorHas) {
  const auto second = read_params(kLlama2, 32000);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->spec.vocab_size, 32000);
  EXPECT_EQ(second->spec.n_kv_heads, 32);
  EXPECT_EQ(second->spec.ffn_hidden, 11008);
  EXPECT_EQ(second->spec.rope_theta, 10000);
  EXPECT_FALSE(second->spec.rope_scaling.has_value());
  EXPECT_EQ(models::parameter_count(second->spec), 6738415616);
  const auto large = read_params(kLlama2Large, 32000);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->spec.ffn_hidden, 28672);
  const auto mistral = read_params(kMistral);
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_EQ(mistral->spec.head_dim, 128);
  EXPECT_EQ(mistral->spec.max_seq_len, 128000);
  EXPECT_EQ(models::parameter_count(mistral->spec), 12247782400);
}

TEST(MetaParamsTest, SaysWhatTheFileLeavesOut) {
  const auto read = read_params(kLlama4);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->states_scaling);
  EXPECT_FALSE(read->states_temperature);
  EXPECT_EQ(read->spec.query_temperature_floor, 0);
  EXPECT_THAT(read->notes, ::testing::ElementsAre("vision_args: only the language model is read"));
}

TEST(MetaParamsTest, RefusalsNameTheKey) {
  const auto refusal = [](const json& params) {
    const auto read = read_params(params);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << params;
    return std::string(read.status().message());
  };
  EXPECT_THAT(refusal(json::array()), HasSubstr("params.json: not a JSON object"));
  EXPECT_THAT(refusal(kLlama2), HasSubstr("params.json: vocab_size is -1"));
  EXPECT_THAT(refusal(with(kLlama3, "use_alibi", true)), HasSubstr("params.json: use_alibi is true"));
  EXPECT_THAT(refusal(with(kLlama3, "vision_chunk_size", 448)), HasSubstr("vision_chunk_size is 448"));
  EXPECT_THAT(refusal(with(kLlama3, "quantization_args", {{"group_size", 32}})), HasSubstr("quantization_args is"));
  EXPECT_THAT(refusal(with(kLlama3, "dim", "wide")), HasSubstr("dim is \"wide\""));
  EXPECT_THAT(refusal(with(kLlama3, "n_kv_heads", 5)), HasSubstr("n_kv_heads"));
  EXPECT_THAT(refusal(with(kLlama3, "multiple_of", 0)), HasSubstr("multiple_of is 0"));
  EXPECT_THAT(refusal(with(kLlama4, "moe_args", nullptr)), HasSubstr("moe_args is null"));
  EXPECT_THAT(refusal(with(kLlama4, "moe_args", {{"num_experts", 4}, {"jitter", 1}})),
              HasSubstr("moe_args.jitter is 1"));
  EXPECT_THAT(refusal(with(kMistral, "sliding_window", 4096)), HasSubstr("sliding_window is 4096"));
  EXPECT_THAT(refusal(with(kMistral, "rope_theta", nullptr)), HasSubstr("rope_theta is null"));
  EXPECT_THAT(refusal(with(kMistral, "moe", {{"num_experts", 8}})), HasSubstr("moe is"));
}

}  // namespace
}  // namespace titan::meta_config
