#include "common/plan/config/model_override.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/validate.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "common/plan/models/spec_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using models::ModelSpec;
using nlohmann::json;
using ::testing::HasSubstr;

LoadedConfig loaded(const std::vector<std::string>& words) {
  auto result = load_overrides(words);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

ModelSpec spec_of(const std::vector<std::string>& words) {
  const auto spec = resolve_model(loaded(words).config.model);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(ModelSpec());
}

// Returns the errors of a job, on loading or on validation.
std::string refusal(const std::vector<std::string>& words) {
  const auto result = load_overrides(words);
  return std::string(result.ok() ? validate(*result).message() : result.status().message());
}

// Every number of a decoder can be overridden, under its name. A member without a key is listed here with its reason.
TEST(ModelOverrideTest, EveryNumberHasAKey) {
  const std::set<std::string> without = {"name",
                                         "flavor",  // They choose the model.
                                         "flux",
                                         "other",  // Not decoders.
                                         "vision",
                                         "qwen3_vl",                 // The tower belongs to its weights.
                                         "mask",                     // model.attn_mask_type
                                         "moe.load_balance_coeff"};  // model.load_balance_coeff
  std::set<std::string> keys;
  JobConfig config;
  for (const Section& section : sections(config)) {
    const std::string name(section.name), top = "model.override";
    if (name.compare(0, top.size(), top) != 0) continue;
    const std::string prefix = name == top ? "" : name.substr(top.size() + 1) + ".";
    for (const Field& field : section.fields) keys.insert(prefix + std::string(field.key));
  }
  ModelSpec full = *models::find("deepseek_v3", "671B");
  full.rope_scaling.emplace();
  std::set<std::string> members;
  const json numbers = models::to_json(full);
  for (const auto& [name, value] : numbers.items()) {
    if (!value.is_object()) members.insert(name);
    if (!value.is_object()) continue;
    for (const auto& [inner, any] : value.items()) members.insert(absl::StrCat(name, ".", inner));
  }
  for (const std::string& one : without) members.erase(one);
  members.insert("rope_type");
  EXPECT_EQ(keys, members);
}

TEST(ModelOverrideTest, ChangesTheNumbersItNames) {
  const ModelSpec spec =
      spec_of({"--model.flavor", "8B", "--model.override.n_layers", "12", "--model.override.vocab_size=32000",
               "--model.override.rope_theta", "1e6", "--model.override.tied_embeddings", "true"});
  ModelSpec expected = *models::find("llama3", "8B");
  expected.n_layers = 12;
  expected.vocab_size = 32000;
  expected.rope_theta = 1e6;
  expected.tied_embeddings = true;
  EXPECT_EQ(models::to_json(spec), models::to_json(expected));
}

// A sweep of widths is one key: what follows from the width in the flavor follows from the new width, too.
TEST(ModelOverrideTest, HeadsFollowTheWidth) {
  EXPECT_EQ(spec_of({"--model.flavor", "8B", "--model.override.dim", "2048"}).head_dim, 64);
  EXPECT_EQ(spec_of({"--model.flavor", "8B", "--model.override.dim", "2048"}).v_head_dim, 64);
  EXPECT_EQ(spec_of({"--model.override.n_heads", "8"}).n_kv_heads, 8) << "as many as query heads, as in the flavor";
  EXPECT_EQ(spec_of({"--model.name", "qwen3", "--model.override.dim", "512"}).head_dim, 128) << "Qwen's do not follow";
  const ModelSpec latent = spec_of({"--model.name", "deepseek_v3", "--model.override.qk_nope_head_dim", "96"});
  EXPECT_EQ(latent.head_dim, 96 + latent.qk_rope_head_dim);
}

TEST(ModelOverrideTest, RopeTypeExchangesTheScaling) {
  EXPECT_FALSE(spec_of({"--model.override.rope_type", "default"}).rope_scaling);
  const ModelSpec yarn = spec_of({"--model.name", "qwen3", "--model.flavor", "8B", "--model.override.rope_type", "yarn",
                                  "--model.override.yarn.factor", "4"});
  EXPECT_EQ(yarn.yarn->factor, 4);
  EXPECT_EQ(yarn.yarn->original_seq_len, 4096) << "the context that the flavor is made for";
  EXPECT_TRUE(yarn.yarn->scales_cos_sin && yarn.yarn->rounds_bounds && !yarn.yarn->only_beyond_original);
  EXPECT_EQ(spec_of({"--model.override.rope_scaling.factor", "32"}).rope_scaling->factor, 32);
  EXPECT_THAT(refusal({"--model.override.yarn.factor", "4"}),
              HasSubstr("model.override.yarn.factor: the model has no YaRN; set model.override.rope_type = \"yarn\""));
}

TEST(ModelOverrideTest, DenseModelBecomesAMixture) {
  const ModelSpec spec = spec_of({"--model.override.moe.num_experts", "4", "--model.override.moe.hidden", "64",
                                  "--model.override.moe.num_shared_experts", "0"});
  EXPECT_EQ(spec.moe->num_experts, 4);
  EXPECT_EQ(spec.moe->top_k, 1);
  EXPECT_THAT(refusal({"--model.override.moe.num_experts", "4"}),
              HasSubstr("model.override.moe.hidden: 0 is not above 0"));
}

TEST(ModelOverrideTest, ContradictionsNameTheKey) {
  EXPECT_THAT(refusal({"--model.override.n_heads", "3", "--model.override.n_kv_heads", "2"}),
              HasSubstr("model.override."));
  EXPECT_THAT(refusal({"--model.override.dim", "250"}),
              HasSubstr("model.override.dim: dim 250 is not a multiple of n_heads 16"));
  EXPECT_THAT(refusal({"--model.override.n_layer", "3"}), HasSubstr("model.override.n_layers"));
  EXPECT_THAT(refusal({"--model.override.n_layers", "0"}), HasSubstr("model.override.n_layers"));
  EXPECT_THAT(refusal({"--model.override.activation", "gelu"}), HasSubstr("gelu_tanh"));
  EXPECT_THAT(refusal({"--model.name", "flux", "--model.flavor", "flux-tiny", "--model.override.dim", "64"}),
              HasSubstr("numbers of decoders do not apply to flux"));
}

// The job's numbers replace those of its weights, a scaling of RoPE as a whole.
TEST(ModelOverrideTest, WeightsNumbersComeBeforeTheJobs) {
  const ModelSpec base = *models::find("qwen3", "8B");
  ModelSpec weights = base;
  weights.rope_theta = 5e6;
  weights.norm_eps = 1e-5;
  const auto settled = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--model.name", "qwen3", "--model.flavor", "8B"};
    words.insert(words.end(), more.begin(), more.end());
    const auto spec = settle_model(base, weights, loaded(words).config.model);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.value_or(ModelSpec());
  };
  EXPECT_EQ(models::to_json(settled({})), models::to_json(weights));
  const ModelSpec yarn = settled({"--model.override.max_seq_len", "131072", "--model.override.rope_type", "yarn",
                                  "--model.override.yarn.factor", "4"});
  EXPECT_EQ(yarn.yarn->original_seq_len, 4096) << "the context before the extension";
  EXPECT_EQ(yarn.rope_theta, 5e6);
  EXPECT_EQ(yarn.norm_eps, 1e-5);
  const ModelSpec llama = *models::find("llama3", "8B");
  ModelSpec older = llama;
  older.rope_scaling.reset();  // Llama 3.0
  const auto kept = settle_model(
      llama, older, loaded({"--model.flavor", "8B", "--model.override.rope_scaling.factor", "16"}).config.model);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->rope_scaling->factor, 16);
}

TEST(ModelOverrideTest, NumbersWithoutSenseAreRefused) {
  EXPECT_THAT(refusal({"--model.override.n_layers", "1000000000"}),
              HasSubstr("model.override.n_layers: 1000000000 is above 100000"));
  EXPECT_THAT(refusal({"--model.override.ffn_hidden", "0"}),
              HasSubstr("ffn_hidden: 0 is not above 0, and layer 0 has no experts"));
  EXPECT_THAT(refusal({"--model.name", "mixtral", "--model.override.moe.layer_step", "2"}), HasSubstr("ffn_hidden"));
  EXPECT_THAT(refusal({"--model.name", "deepseek_v3", "--model.override.qk_norm", "true"}),
              HasSubstr("model.override.qk_norm: latent attention has no such option"));
  EXPECT_THAT(refusal({"--model.converters", "lora", "--model.override.vocab_size", "4096"}),
              HasSubstr("model.override.vocab_size = 4096: does not work with lora"));
  EXPECT_EQ(spec_of({"--model.name", "gemma2", "--model.override.dim", "256"}).embedding_scale, 16);
}

class ConfigFlavorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/config_flavor_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    write({{"model_type", "llama"},
           {"hidden_size", 96},
           {"num_hidden_layers", 3},
           {"num_attention_heads", 6},
           {"num_key_value_heads", 2},
           {"intermediate_size", 160},
           {"vocab_size", 2048},
           {"max_position_embeddings", 512},
           {"rms_norm_eps", 1e-6},
           {"rope_theta", 25000.0},
           {"tie_word_embeddings", true},
           {"attention_dropout", 0.1}});
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const json& config) { std::ofstream(folder_ + "/config.json") << config.dump(); }
  std::vector<std::string> words(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--model.flavor", "config.json", "--model.hf_assets_path", folder_});
    return more;
  }

  std::string folder_;
};

TEST_F(ConfigFlavorTest, TheFileIsTheModel) {
  const LoadedConfig job = loaded(words());
  EXPECT_EQ(job.config.model.name, "llama3");
  const ModelSpec spec = *resolve_model(job.config.model);
  EXPECT_EQ(spec.flavor, "config.json");
  EXPECT_EQ(spec.dim, 96);
  EXPECT_EQ(spec.n_kv_heads, 2);
  EXPECT_EQ(spec.rope_theta, 25000);
  EXPECT_FALSE(spec.rope_scaling);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_TRUE(validate(job).ok()) << validate(job);
  EXPECT_THAT(job.warnings, ::testing::Contains(HasSubstr("attention_dropout 0.1 is not applied")));
}

// The controller and the ranks need no file: the numbers travel with the configuration, and stay those of the
// submission whatever happens to the folder.
TEST_F(ConfigFlavorTest, NumbersTravelWithTheConfiguration) {
  const LoadedConfig job = loaded(words({"--model.override.n_layers", "5"}));
  std::filesystem::remove_all(folder_);
  const auto copy = from_json(to_json(job.config));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(resolve_model(copy->model)->n_layers, 5);
  const auto again =
      load_text(to_json(job.config).dump(), ConfigFormat::kJson, "job", {"--model.override.n_layers", "7"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(resolve_model(again->config.model)->n_layers, 7);
  EXPECT_EQ(resolve_model(again->config.model)->dim, 96);
}

TEST_F(ConfigFlavorTest, OverridesApplyToTheFile) {
  const ModelSpec spec = spec_of(words({"--model.override.rope_theta", "5e5", "--model.override.vocab_size", "2304"}));
  EXPECT_EQ(spec.rope_theta, 5e5);
  EXPECT_EQ(spec.vocab_size, 2304);
  EXPECT_TRUE(overrides_positions(loaded(words({"--model.override.rope_theta", "5e5"})).config.model));
  EXPECT_FALSE(overrides_positions(loaded(words({"--model.override.n_layers", "2"})).config.model));
}

TEST_F(ConfigFlavorTest, WhatCannotBeReadIsNamed) {
  EXPECT_THAT(refusal(words({"--model.name", "qwen3"})), HasSubstr("describes a model of the family llama3"));
  EXPECT_THAT(refusal({"--model.flavor", "config.json", "--model.hf_assets_path", folder_ + "/none"}),
              HasSubstr("model.hf_assets_path"));
  write({{"model_type", "mamba"}});
  EXPECT_THAT(refusal(words()), HasSubstr("model_type"));
  std::ofstream(folder_ + "/config.json") << "{";
  EXPECT_THAT(refusal(words()), HasSubstr("not a JSON object"));
}

// A configuration that did not pass through titanctl has no numbers, or wrong ones.
TEST_F(ConfigFlavorTest, SpecIsChecked) {
  JobConfig config;
  config.model.flavor = kConfigFlavor;
  const auto message = [&] { return std::string(validate(config).message()); };
  EXPECT_THAT(message(), HasSubstr("needs the numbers of the model in model.spec"));
  config.model.spec = std::string(500'000, '[') + std::string(500'000, ']');
  EXPECT_THAT(message(), HasSubstr("model.spec: nested too deeply"));
  config.model.spec = "no JSON";
  EXPECT_THAT(message(), HasSubstr("model.spec"));
  json spec = models::to_json(*models::find("llama3", "debugmodel"));
  spec["n_layer"] = 4;
  config.model.spec = spec.dump();
  EXPECT_THAT(message(), HasSubstr("n_layer: models have no such number; did you mean"));
  spec.erase("n_layer");
  spec["n_layers"] = "4";
  config.model.spec = spec.dump();
  EXPECT_THAT(message(), HasSubstr("n_layers: \"4\" is not an integer"));
  spec["n_layers"] = -4;
  config.model.spec = spec.dump();
  EXPECT_THAT(message(), HasSubstr("n_layers: -4 is not above 0"));
  spec["n_layers"] = 4;
  config.model.spec = spec.dump();
  EXPECT_EQ(message(), "");
  config.model.name = "qwen3";
  EXPECT_THAT(message(), HasSubstr("is of the family llama3, but model.name is qwen3"));
}

// Every flavor survives the way through JSON.
TEST(SpecJsonTest, EveryFlavorRoundTrips) {
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : models::flavors(name)) {
      const json values = models::to_json(*models::find(name, flavor));
      const auto back = models::from_json(values);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(models::to_json(*back), values) << name << " " << flavor;
      EXPECT_EQ(models::inconsistency(*back), "") << name << " " << flavor;
    }
  }
}

}  // namespace
}  // namespace titan::config
