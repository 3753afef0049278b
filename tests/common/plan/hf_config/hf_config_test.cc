// Every key of a config.json that changes results is read or rejected by name. generate_oracle_test compares the
// results with transformers 4 and 5.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;
using ::testing::HasSubstr;

const std::vector<std::string> kTypes = [] {
  std::vector<std::string> types;
  for (const auto& [type, any] : config_classes()) types.push_back(type);
  return types;
}();

json small(const std::string& type) {
  json config = {{"model_type", type}, {"vocab_size", 200}};
  if (type == "deepseek_v2") config["num_experts_per_tok"] = 6;  // The default of its class is None.
  return config;
}

ModelSpec spec_of(const json& config) {
  const auto read = read_model(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->spec : ModelSpec{};
}

std::string refusal(const json& config) { return std::string(read_model(config).status().message()); }

json with(json config, const char* pointer, const json& value) {
  config[json::json_pointer(pointer)] = value;
  return config;
}

TEST(HfConfigTest, ClassDefaultsGiveAModel) {
  for (const std::string& type : kTypes) {
    SCOPED_TRACE(type);
    const ModelSpec spec = spec_of(small(type));
    EXPECT_EQ(models::inconsistency(spec), "");
    EXPECT_EQ(model_type_of(spec), type);
    EXPECT_TRUE(reads(type));
  }
  // Values that other flavors of the same family set differently.
  EXPECT_EQ(spec_of(small("llama")).rope_theta, 1e4);
  EXPECT_EQ(spec_of(small("qwen3")).n_kv_heads, 32);
  EXPECT_EQ(spec_of(with(small("qwen3"), "/num_key_value_heads", nullptr)).n_kv_heads, 32);
  EXPECT_EQ(spec_of(small("qwen3_moe")).n_kv_heads, 4);
  EXPECT_EQ(spec_of(small("deepseek_v2")).moe->first_layer, 0);
  EXPECT_EQ(spec_of(small("deepseek_v2")).moe->num_expert_groups, 0);
  EXPECT_EQ(spec_of(small("deepseek_v2")).q_lora_rank, 1536);
  EXPECT_EQ(spec_of(with(small("deepseek_v2"), "/q_lora_rank", nullptr)).q_lora_rank, 0);
  EXPECT_EQ(spec_of(small("deepseek_v3")).moe->route_scale, 2.5);
  EXPECT_TRUE(spec_of(small("deepseek_v3")).moe->route_norm);
  EXPECT_FALSE(spec_of(small("deepseek_v3")).yarn);
  EXPECT_EQ(spec_of(small("gpt_oss")).yarn->factor, 32);
  EXPECT_FALSE(spec_of(small("llama4_text")).rope_scaling);
  // The default of transformers 4 is 32000, that of 5 is 102400.
  json unset = small("deepseek_v2");
  unset.erase("vocab_size");
  EXPECT_THAT(refusal(unset), HasSubstr("vocab_size is missing; an integer above 0 is required"));
}

TEST(HfConfigTest, AcceptsAliasesOfTransformers5) {
  for (const std::string& type : kTypes) {
    const AttributeAlias alias = config_classes().at(type).alias;
    if (alias.first.empty()) continue;
    json config = small(type);
    config[alias.second] = 16;
    EXPECT_EQ(spec_of(config).moe->num_experts, 16) << type;
    config[alias.first] = 32;
    EXPECT_THAT(refusal(config), HasSubstr(alias.second + " is 16; the same as " + alias.first)) << type;
  }
}

// Settings that no family computes: the message names key and value, whichever class reads the key.
TEST(HfConfigTest, RefusesUnsupportedKeys) {
  struct Row {
    const char* type;
    const char* key;
    json value;
  };
  const std::vector<Row> rows = {
      {"llama", "hidden_act", "gelu"},
      {"llama", "partial_rotary_factor", 0.5},
      {"qwen3", "layer_types", {"sliding_attention"}},
      {"qwen3_moe", "mlp_only_layers", {0}},
      {"qwen3_moe", "decoder_sparse_step", 2},
      {"deepseek_v2", "norm_topk_prob", true},
      {"deepseek_v2", "topk_method", "noaux_tc"},
      {"deepseek_v2", "scoring_func", "sigmoid"},
      {"deepseek_v3", "scoring_func", "softmax"},
      {"deepseek_v3", "topk_method", "greedy"},
      {"deepseek_v3", "moe_layer_freq", 2},
      {"deepseek_v3", "n_shared_experts", nullptr},
      {"gpt_oss", "attention_bias", false},
      {"gpt_oss", "swiglu_alpha", 1.5},
      {"gpt_oss", "sliding_window", nullptr},
      {"gpt_oss", "layer_types", {"full_attention"}},
      {"gpt_oss", "rope_scaling", nullptr},
      {"llama4_text", "moe_layers", {0, 1}},
      {"llama4_text", "layer_types", {"full_attention"}},
      {"llama4_text", "attention_chunk_size", nullptr},
      {"llama4_text", "no_rope_layers", {1, 0, 0, 1}},
      {"mistral", "attention_bias", true},
      {"mistral", "layer_types", {"full_attention"}},
      {"mixtral", "num_experts_per_tok", 0},
      {"qwen2", "layer_types", json::array()},
      {"smollm3", "no_rope_layers", {1, 0, 0, 1}},
      {"smollm3", "layer_types", json(std::vector<std::string>(36, "sliding_attention"))},
      {"phi3", "rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}, {"long_factor", {1}}}},
      {"phi3", "rope_parameters", {{"rope_type", "longrope"}}},
      {"phi3", "partial_rotary_factor", 1.5},
      {"phi3", "lm_head_bias", true},
      {"glm4", "partial_rotary_factor", 0.01},
      {"olmo2", "partial_rotary_factor", 0.5},
      {"granite", "residual_multiplier", 0},
      {"gemma2", "hidden_activation", "gelu"},
      {"gemma2", "use_bidirectional_attention", true},
      {"gemma3_text", "attn_logit_softcapping", 50.0},
      {"gemma3_text", "sliding_window_pattern", 0},
      {"gemma3_text", "sliding_window", nullptr},
      {"llama", "num_hidden_layers", 1e9},
      {"llama", "original_max_position_embeddings", 7}};
  for (const Row& row : rows) {
    json config = small(row.type);
    if (std::string(row.key) == "original_max_position_embeddings")
      config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", 1}};
    config[row.key] = row.value;
    EXPECT_THAT(refusal(config), HasSubstr(std::string("config.json: ") + row.key + " is ")) << row.type;
  }
}

// Keys that no list of a class has would be left out silently: they are refused, with the key that was probably meant.
TEST(HfConfigTest, RefusesUnknownKeys) {
  for (const std::string& type : kTypes) {
    EXPECT_THAT(refusal(with(small(type), "/mixture_of_depths", true)),
                HasSubstr("config.json: mixture_of_depths is true: Titan does not compute it for " + type))
        << type;
    EXPECT_THAT(refusal(with(small(type), "/rms_norm_ep", 1e-6)), HasSubstr("did you mean 'rms_norm_eps'?")) << type;
    EXPECT_TRUE(read_model(with(small(type), "/mixture_of_depths", nullptr)).ok()) << "a null counts as missing";
  }
  // A key of another class.
  EXPECT_THAT(refusal(with(small("llama"), "/residual_multiplier", 0.5)),
              HasSubstr("residual_multiplier is 0.5: Titan"));
}

json another(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get<std::string>() + "x";
  if (value.is_number_integer()) return value.get<int64_t>() + 8;
  if (value.is_number()) return value.get<double>() * 1.5 + 0.25;
  return json(5);
}

// Each key of the three lists has the effect that its list says.
TEST(HfConfigTest, EveryDeclaredKeyHasItsEffect) {
  // Keys that matter only together with others, and the file in which they do.
  const std::map<std::string, json> needs = {{"max_window_layers", {{"use_sliding_window", true}}},
                                             {"sliding_window", {{"use_sliding_window", true}}},
                                             {"use_sliding_window", {{"sliding_window", 64}}},
                                             {"intermediate_size_mlp", {{"interleave_moe_layer_step", 2}}},
                                             {"topk_group", {{"topk_method", "group_limited_greedy"}, {"n_group", 8}}},
                                             {"n_group", {{"topk_method", "group_limited_greedy"}, {"topk_group", 1}}}};
  for (const std::string& type : kTypes) {
    const ConfigClass& config_class = config_classes().at(type);
    const json plain = models::to_json(spec_of(small(type)));
    for (const auto& [key, value] : config_class.computed.items()) {
      json config = small(type);
      if (const auto more = needs.find(key); more != needs.end()) {
        for (const auto& [other, set] : more->second.items()) {
          if (config_class.computed.contains(other) && !(type == "deepseek_v3" && other == "topk_method"))
            config[other] = set;
        }
      }
      const json before = models::to_json(spec_of(config));
      config[key] = another(value);
      const auto read = read_model(config);
      if (read.ok()) {
        EXPECT_NE(models::to_json(read->spec), before) << type << " " << key;
      } else {
        EXPECT_THAT(std::string(read.status().message()), HasSubstr("config.json: ")) << type << " " << key;
      }
    }
    for (const auto& [key, value] : config_class.only.items()) {
      EXPECT_THAT(refusal(with(small(type), ("/" + key).c_str(), another(value))), HasSubstr("config.json: " + key))
          << type;
      EXPECT_EQ(models::to_json(spec_of(with(small(type), ("/" + key).c_str(), value))), plain) << type << " " << key;
    }
    for (const auto* groups : {&config_class.ignored, &ignored_everywhere()}) {
      for (const IgnoredKeys& group : *groups) {
        EXPECT_FALSE(group.why.empty());
        for (const std::string& key : group.names) {
          if (key == "transformers_version") continue;  // Decides what a missing table of GPT-OSS means.
          EXPECT_EQ(models::to_json(spec_of(with(small(type), ("/" + key).c_str(), 3))), plain) << type << " " << key;
        }
      }
    }
  }
}

TEST(HfConfigTest, WindowsAreReadFromEveryForm) {
  const std::string window = "sliding_attention", full = "full_attention";
  ModelSpec spec = spec_of(small("mistral"));
  EXPECT_EQ(spec.layer_window(0), 4096) << "the class's default";
  EXPECT_EQ(spec.layer_window(31), 4096);
  EXPECT_EQ(spec_of(with(small("mistral"), "/sliding_window", nullptr)).layer_window(0), 0);
  spec = spec_of(with(small("qwen2"), "/use_sliding_window", true));
  EXPECT_EQ(spec.layer_window(27), 0);
  EXPECT_EQ(spec.layer_window(28), 4096);
  EXPECT_EQ(spec.layer_window(31), 4096);
  EXPECT_EQ(spec_of(small("qwen2")).sliding_window, 0);
  spec = spec_of(small("gemma3_text"));
  for (const int64_t layer : {0, 4, 5, 11, 25}) EXPECT_EQ(spec.layer_window(layer) == 0, layer % 6 == 5) << layer;
  EXPECT_EQ(spec_of(with(small("gemma3_text"), "/sliding_window_pattern", 4)).layer_window(3), 0);
  EXPECT_EQ(spec_of(small("gemma2")).layer_window(1), 0);
  // Lists: windows from a layer on, apart from every n-th.
  json config = with(small("gemma2"), "/num_hidden_layers", 7);
  spec = spec_of(with(config, "/layer_types", {full, full, window, full, window, full, window}));
  EXPECT_EQ(spec.window_first_layer, 2);
  EXPECT_EQ(spec.layer_window(6), 4096);
  EXPECT_EQ(spec.layer_window(5), 0);
  EXPECT_EQ(spec_of(with(config, "/layer_types", json(std::vector<std::string>(7, full)))).sliding_window, 0);
  for (const json& bad : {json({window, window, full, full, window, full, window}), json({window}), json(3),
                          json({window, full, window, full, window, full, "chunked_attention"})}) {
    EXPECT_THAT(refusal(with(config, "/layer_types", bad)), HasSubstr("config.json: layer_types is ")) << bad;
  }
  // Layers without positions have the windows of SmolLM 3, which is expressible only if the others have none.
  config = small("smollm3");
  config.update({{"use_sliding_window", true}, {"sliding_window", 64}});
  EXPECT_THAT(refusal(config), HasSubstr("use_sliding_window is true"));
}

TEST(HfConfigTest, RotaryPartsAndLocalThetas) {
  EXPECT_EQ(spec_of(small("glm4")).rotary_dim, 64);
  EXPECT_EQ(spec_of(with(small("glm4"), "/partial_rotary_factor", 1.0)).rotary_dim, 0);
  EXPECT_EQ(spec_of(small("phi3")).rotary_dim, 0);
  EXPECT_EQ(spec_of(with(small("phi3"), "/partial_rotary_factor", 0.75)).rotary_dim, 72);
  json table = {{"rope_type", "default"}, {"rope_theta", 7.0}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(spec_of(with(small("glm4"), "/rope_parameters", table)).rotary_dim, 32);
  EXPECT_EQ(spec_of(small("gemma3_text")).window_rope_theta, 1e4);
  EXPECT_EQ(spec_of(with(small("gemma3_text"), "/rope_local_base_freq", 5e3)).window_rope_theta, 5e3);
  // The tables of transformers 5.
  table = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}}},
           {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e3}}}};
  const ModelSpec spec = spec_of(with(small("gemma3_text"), "/rope_parameters", table));
  EXPECT_EQ(spec.rope_theta, 2e6);
  EXPECT_EQ(spec.rope_scaling->factor, 8);
  EXPECT_EQ(spec.window_rope_theta, 3e3);
  table["sliding_attention"]["rope_type"] = "linear";
  EXPECT_THAT(refusal(with(small("gemma3_text"), "/rope_parameters", table)), HasSubstr("sliding_attention.rope_type"));
}

TEST(HfConfigTest, FactorsOfOtherFamilies) {
  EXPECT_EQ(spec_of(small("gemma2")).attention_scale, 0) << "the head's width, as usual";
  EXPECT_EQ(spec_of(with(small("gemma2"), "/query_pre_attn_scalar", 144)).attention_scale, 1.0 / 12);
  EXPECT_EQ(spec_of(small("gemma2")).embedding_scale, 48);
  EXPECT_EQ(spec_of(small("gemma2")).attention_softcap, 50);
  EXPECT_EQ(spec_of(with(small("gemma2"), "/final_logit_softcapping", nullptr)).logit_softcap, 0);
  EXPECT_EQ(spec_of(small("granite")).attention_scale, 1) << "the class's default is not the usual scale";
  EXPECT_TRUE(spec_of(with(small("llama"), "/attention_bias", true)).attention_out_bias);
  EXPECT_FALSE(spec_of(small("qwen2")).attention_out_bias);
  EXPECT_TRUE(spec_of(small("qwen2")).attention_bias);
  EXPECT_TRUE(spec_of(with(small("smollm3"), "/mlp_bias", true)).mlp_bias);
  EXPECT_EQ(spec_of(with(small("deepseek_v3"), "/model_type", "kimi_k2")).name, "deepseek_v3");
}

json rope_of(const char* type, json more) {
  json config = small(type);
  more.update({{"rope_type", more.value("rope_type", "yarn")}});
  config["rope_scaling"] = more;
  return config;
}

const json kYarn = {{"factor", 4.0}, {"original_max_position_embeddings", 128}};
json yarn(const json& more) {
  json table = kYarn;
  table.update(more);
  return table;
}

TEST(HfConfigTest, ReadsEveryFormOfYarn) {
  // DeepSeek's form scales the scores, not the rotation.
  ModelSpec spec = spec_of(rope_of("deepseek_v3", yarn({{"mscale", 0.7}, {"mscale_all_dim", 0.7}})));
  EXPECT_FALSE(spec.yarn->scales_cos_sin);
  EXPECT_FALSE(spec.yarn->only_beyond_original) << "transformers stretches sequences of any length";
  EXPECT_EQ(spec.yarn->mscale, 0.7);
  EXPECT_EQ(spec.yarn->original_seq_len, 128);
  spec = spec_of(rope_of("deepseek_v3", yarn({{"mscale_all_dim", 0.5}, {"attention_factor", 1.0}})));
  EXPECT_EQ(spec.yarn->mscale, 0.5);
  EXPECT_EQ(spec_of(rope_of("deepseek_v3", yarn({{"attention_factor", 1.0}}))).yarn->mscale, 0);
  // GPT-OSS's form scales the rotation, and its blend has exact bounds.
  for (const char* type : {"gpt_oss", "llama", "qwen3", "deepseek_v3"}) {
    EXPECT_TRUE(spec_of(rope_of(type, yarn({{"truncate", false}}))).yarn->scales_cos_sin) << type;
    const double usual = 0.1 * std::log(4.0) + 1;
    EXPECT_TRUE(spec_of(rope_of(type, yarn({{"truncate", false}, {"attention_factor", usual}}))).yarn->scales_cos_sin);
  }
  // Defaults of missing keys.
  spec = spec_of(rope_of("llama", {{"factor", 4.0}, {"attention_factor", 1}, {"beta_fast", 0}}));
  EXPECT_EQ(spec.yarn->original_seq_len, 2048) << "max_position_embeddings";
  EXPECT_EQ(spec.yarn->beta_fast, 32);
  // transformers' default: a scaled rotation with integer bounds. An explicit factor replaces the usual one.
  for (const char* type : {"gpt_oss", "llama", "qwen3", "deepseek_v3"}) {
    spec = spec_of(rope_of(type, yarn({{"truncate", true}})));
    EXPECT_TRUE(spec.yarn->scales_cos_sin && spec.yarn->rounds_bounds) << type;
    EXPECT_EQ(spec.yarn->cos_sin_factor, 0) << "the usual one";
    EXPECT_EQ(spec_of(rope_of(type, yarn({{"attention_factor", 1.5}}))).yarn->cos_sin_factor, 1.5) << type;
  }
  EXPECT_EQ(spec_of(rope_of("llama", yarn({{"attention_factor", 1}, {"truncate", false}}))).yarn->cos_sin_factor, 1);
  // Settings that are not supported.
  const auto refused = [](const char* type, const json& more) { return refusal(rope_of(type, yarn(more))); };
  EXPECT_THAT(refused("deepseek_v3", {{"attention_factor", -1.5}}), HasSubstr("rope_scaling.attention_factor is -1.5"));
  EXPECT_THAT(refused("deepseek_v3", {{"mscale", 1.0}, {"mscale_all_dim", 0.5}}), HasSubstr("mscale_all_dim is 0.5"));
  EXPECT_THAT(refused("deepseek_v3", {{"truncate", false}, {"mscale_all_dim", 0.5}}),
              HasSubstr("mscale_all_dim is 0.5"));
  EXPECT_THAT(refused("llama", {{"factor", 0}, {"truncate", false}}), HasSubstr("rope_scaling.factor is 0"));
}

TEST(HfConfigTest, OtherFamiliesAcceptLinearAndLlama3Scaling) {
  for (const std::string& type : kTypes) {
    SCOPED_TRACE(type);
    if (type == "phi3") continue;  // Its class has only LongRoPE.
    ModelSpec spec = spec_of(rope_of(type.c_str(), {{"rope_type", "linear"}, {"factor", 2.5}}));
    EXPECT_EQ(spec.rope_scaling->factor, 2.5);
    EXPECT_EQ(spec.rope_scaling->original_seq_len, 0) << "every wavelength is longer";
    EXPECT_FALSE(spec.yarn);
    const json llama3 = {{"rope_type", "llama3"}, {"factor", 8},       {"low_freq_factor", 2},
                         {"high_freq_factor", 3}, {"rope_theta", 7.0}, {"original_max_position_embeddings", 64}};
    spec = spec_of(rope_of(type.c_str(), llama3));
    EXPECT_EQ(spec.rope_scaling->low_freq_factor, 2);
    EXPECT_EQ(spec.rope_scaling->original_seq_len, 64);
    EXPECT_EQ(spec.rope_theta, 7);
    for (const auto& [key, value] : llama3.items()) {
      if (key == "rope_type" || key == "rope_theta") continue;
      json less = llama3;
      less.erase(key);
      EXPECT_THAT(refusal(rope_of(type.c_str(), less)), HasSubstr("rope_scaling." + key + " is missing"));
    }
  }
}

TEST(HfConfigTest, RefusesUnknownRopeParameters) {
  const auto refused = [](const json& table) { return refusal(rope_of("llama", table)); };
  EXPECT_THAT(refused({{"rope_type", "default"}, {"factor", 2}}), HasSubstr("rope_scaling.factor is 2"));
  EXPECT_THAT(refused({{"rope_type", "linear"}, {"factor", 2}, {"mrope_section", {1}}}),
              HasSubstr("rope_scaling.mrope_section is [1]"));
  EXPECT_THAT(refused({{"rope_type", "linear"}, {"factor", 2}, {"partial_rotary_factor", 0.5}}),
              HasSubstr("rope_scaling.partial_rotary_factor is 0.5"));
  for (const char* kind : {"dynamic", "longrope", "proportional"})
    EXPECT_THAT(refused({{"rope_type", kind}, {"factor", 2}}), HasSubstr("config.json: rope_scaling is")) << kind;
  EXPECT_THAT(refused({{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}}), HasSubstr("rope_scaling is"));
  EXPECT_THAT(refusal(with(small("llama"), "/rope_scaling", {{"factor", 2}})), HasSubstr("rope_scaling is"));
  EXPECT_THAT(refusal(with(small("llama"), "/rope_scaling", "linear")), HasSubstr("rope_scaling is \"linear\""));
  // A null counts as missing.
  EXPECT_TRUE(read_model(rope_of("llama", {{"rope_type", "linear"}, {"factor", 2}, {"type", nullptr}})).ok());
}

TEST(HfConfigTest, RopeTablesOfTransformers4And5AreEquivalent) {
  const json table = {{"rope_type", "linear"}, {"factor", 2}};
  json config = small("llama");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 77}};
  EXPECT_EQ(spec_of(config).rope_theta, 77);
  EXPECT_FALSE(spec_of(config).rope_scaling);
  config["rope_parameters"] = with(table, "/rope_theta", 78);
  EXPECT_EQ(spec_of(config).rope_scaling->factor, 2);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  config["rope_theta"] = 78.0;
  EXPECT_EQ(spec_of(config).rope_theta, 78) << "both tables, so that one file serves both versions";
  EXPECT_THAT(refusal(with(config, "/rope_theta", 1e4)), HasSubstr("rope_parameters.rope_theta is 78"));
  EXPECT_THAT(refusal(with(config, "/rope_scaling/factor", 3)), HasSubstr("rope_scaling is"));
  // One table for each kind of layer.
  config = small("gpt_oss");
  config["rope_parameters"] = {{"full_attention", table}, {"sliding_attention", table}};
  EXPECT_THAT(refusal(config), HasSubstr("rope_parameters is"));
  // The class of GPT-OSS has a default table: for null, transformers 4 uses none and 5 uses the default.
  config = with(small("gpt_oss"), "/rope_scaling", nullptr);
  EXPECT_FALSE(spec_of(with(config, "/transformers_version", "4.57.3")).yarn);
  EXPECT_THAT(refusal(with(config, "/transformers_version", "5.24.0")), HasSubstr("rope_scaling is null"));
}

TEST(HfConfigTest, AcceptsNumbersWithoutEffectOnShapes) {
  EXPECT_EQ(spec_of(with(small("deepseek_v3"), "/rope_interleave", false)).rope, models::RopeStyle::kRotateHalf);
  EXPECT_EQ(spec_of(with(small("deepseek_v2"), "/rope_interleave", false)).rope, models::RopeStyle::kInterleaved)
      << "its class does not read this";
  json config = with(small("deepseek_v2"), "/topk_method", "group_limited_greedy");
  config.update({{"n_group", 8}, {"topk_group", 3}});
  EXPECT_EQ(spec_of(config).moe->num_expert_groups, 8);
  EXPECT_EQ(spec_of(with(config, "/topk_method", "greedy")).moe->num_expert_groups, 0);
  config = with(small("llama4_text"), "/attn_temperature_tuning", 4);  // The value in the released file.
  EXPECT_EQ(spec_of(config).query_temperature_floor, 8192);
  EXPECT_EQ(spec_of(with(config, "/attn_temperature_tuning", false)).query_temperature_floor, 0);
  EXPECT_EQ(spec_of(with(config, "/no_rope_layer_interval", 6)).nope_layer_step, 6);
  EXPECT_THAT(read_model(with(small("llama"), "/attention_dropout", 0.1))->notes,
              ::testing::ElementsAre(HasSubstr("attention_dropout 0.1")));
}

TEST(HfConfigTest, DifferencesAreNamedByTheirKeys) {
  const HfModel here{.spec = *models::find("llama3", "8B"), .model_type = "llama"};
  HfModel there = here;
  there.spec.n_layers = 40;
  there.spec.norm_eps = 1e-6;
  there.spec.rope_scaling.reset();
  const std::vector<ConfigDifference> found = compare(there, here);
  EXPECT_THAT(text_of(found), HasSubstr("num_hidden_layers 40, this model has 32"));
  EXPECT_THAT(text_of(found), HasSubstr("rms_norm_eps 1e-06, this model has 1e-05"));
  EXPECT_THAT(text_of(found), HasSubstr("rope_scaling null, this model has {"));
  EXPECT_EQ(std::count_if(found.begin(), found.end(), [](const auto& one) { return one.takeable; }), 2);
  ModelSpec taken = here.spec;
  take_numbers(there.spec, taken);
  EXPECT_EQ(compare(there, {.spec = taken, .model_type = "llama"}).size(), 1u);
  // The description in a manifest gives the same numbers again.
  EXPECT_EQ(models::to_json(models::with_weights_numbers(models::to_json(taken), here.spec)), models::to_json(taken));
  there.model_type = "qwen3";
  EXPECT_EQ(text_of(compare(there, here)), "model_type \"qwen3\", this model has \"llama\"");
}

// If only the folder ties the head, the model's head is initialized from the embedding; the reverse would lose a head.
TEST(HfConfigTest, TiedHeadMayBecomeUntied) {
  HfModel here{.spec = *models::find("qwen3", "8B"), .model_type = "qwen3"}, there = here;
  there.spec.tied_embeddings = true;
  EXPECT_TRUE(compare(there, here).empty());
  EXPECT_EQ(text_of(compare(here, there)), "tie_word_embeddings false, this model has true");
}

}  // namespace
}  // namespace titan::hf_config
