// [[optimizer.param_groups]]: every form in which it can be written, and which parameter gets which rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/update_rules.h"
#include "common/plan/config/validate.h"
#include "common/plan/models/registry.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using ::testing::HasSubstr;

const std::vector<ParamGroup> kGroups = {
    {.pattern = R"(\.(wq|wk)\.weight$)", .name = "Muon", .lr = 0.02, .momentum = 0.9, .nesterov = false, .ns_steps = 6},
    {.pattern = "norm", .lr_factor = 0.5, .weight_decay = 0, .beta1 = 0.8, .beta2 = 0.99},
};

constexpr char kToml[] = R"([[optimizer.param_groups]]
pattern = '\.(wq|wk)\.weight$'
name = "Muon"
lr = 0.02
momentum = 0.9
nesterov = false
ns_steps = 6
[[optimizer.param_groups]]
pattern = "norm"
lr_factor = 0.5
weight_decay = 0
beta1 = 0.8
beta2 = 0.99
)";

constexpr char kYaml[] = R"(optimizer:
  param_groups:
    - pattern: \.(wq|wk)\.weight$
      name: Muon
      lr: 0.02
      momentum: 0.9
      nesterov: false
      ns_steps: 6
    - {pattern: norm, lr_factor: 0.5, weight_decay: 0, beta1: 0.8, beta2: 0.99}
)";

// The same groups in torchtitan's spelling.
constexpr char kTheirs[] = R"([{"pattern": "\\.(wq|wk)\\.weight$", "optimizer_name": "Muon",
  "optimizer_kwargs": {"lr": 0.02, "momentum": 0.9, "nesterov": false, "ns_steps": 6}},
 {"pattern": "norm", "lr_factor": 0.5, "optimizer_kwargs": {"weight_decay": 0, "betas": [0.8, 0.99]}}])";

absl::StatusOr<LoadedConfig> load_toml(const std::string& text, const std::vector<std::string>& words = {}) {
  return load_text(text, ConfigFormat::kToml, "a.toml", words);
}

TEST(ParamGroupsTest, IsReadFromEveryForm) {
  const std::string json = R"({"optimizer": {"param_groups": )" + std::string(kTheirs) + "}}";
  const std::map<ConfigFormat, std::string> texts = {
      {ConfigFormat::kToml, kToml}, {ConfigFormat::kYaml, kYaml}, {ConfigFormat::kJson, json}};
  for (const auto& [format, text] : texts) {
    const auto loaded = load_text(text, format, "file");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->config.optimizer.param_groups, kGroups) << text;
    EXPECT_TRUE(validate(*loaded).ok()) << validate(*loaded).message();
  }
  const auto words = load_toml("", {"--optimizer.param_groups", kTheirs});
  ASSERT_TRUE(words.ok()) << words.status().message();
  EXPECT_EQ(words->config.optimizer.param_groups, kGroups);
  // The command line replaces the list of the file.
  const auto over = load_toml(kToml, {"--optimizer.param_groups=[]"});
  ASSERT_TRUE(over.ok());
  EXPECT_TRUE(over->config.optimizer.param_groups.empty());
}

TEST(ParamGroupsTest, SurvivesADumpAndReload) {
  JobConfig config;
  config.optimizer.param_groups = kGroups;
  const auto toml = load_toml(to_toml(config));
  ASSERT_TRUE(toml.ok()) << toml.status().message();
  EXPECT_EQ(toml->config.optimizer.param_groups, kGroups);
  const auto json = from_json(nlohmann::json::parse(to_json(config).dump()));
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(json->optimizer.param_groups, kGroups);
  EXPECT_FALSE(to_json(config)["optimizer"]["param_groups"][0].contains("eps"));
  const nlohmann::json item = json_schema()["properties"]["optimizer"]["properties"]["param_groups"]["items"];
  EXPECT_EQ(item["properties"]["name"]["enum"], nlohmann::json({"AdamW", "Adam", "Muon", nullptr}));
  EXPECT_EQ(item["required"], nlohmann::json({"pattern"}));
}

std::string refusal(const std::string& groups) {
  const auto loaded = load_toml("", {"--optimizer.param_groups", groups});
  return std::string(loaded.ok() ? validate(*loaded).message() : loaded.status().message());
}

TEST(ParamGroupsTest, SaysWhatIsWrong) {
  EXPECT_THAT(refusal("[{"), HasSubstr("expects a list of tables"));
  EXPECT_THAT(refusal("{}"), HasSubstr("expects a list of tables"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("group 1: expects a table with a pattern, not an integer"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm"}, {"lr": 1}])"), HasSubstr("group 2: has no pattern"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "weight_deca": 1}])"), HasSubstr("did you mean weight_decay?"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "lr": -1}])"), HasSubstr("lr = -1: out of range"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "lr": 1, "optimizer_kwargs": {"lr": 2}}])"), HasSubstr("lr: set twice"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "name": "Mun"}])"), HasSubstr("did you mean Muon?"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "betas": [1]}])"), HasSubstr("betas: expects a list of two"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "lr": 1, "lr_factor": 2}])"), HasSubstr("lr and lr_factor"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm", "beta2": 1}])"), HasSubstr("beta2 must be below 1"));
  EXPECT_THAT(refusal(R"([{"pattern": "("}])"), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal(R"([{"pattern": "a{99999}{99999}"}])"), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal(R"([{"pattern": "atention.wq"}])"), HasSubstr("did you mean \"attention.wq\"?"));
  EXPECT_THAT(refusal(R"([{"pattern": "^tok_embedings.weight$"}])"),
              HasSubstr("did you mean \"tok_embeddings.weight\"?"));
  EXPECT_THAT(refusal(R"([{"pattern": "norm"}, {"pattern": "ffn_norm"}])"),
              HasSubstr("only parameters of earlier groups"));
  EXPECT_THAT(refusal(R"([{"pattern": ".*", "name": "Muon"}])"), HasSubstr("which is not a matrix, to Muon"));
  EXPECT_THAT(std::string(load_toml("[optimizer.param_groups]\npattern = \"a\"\n").status().message()),
              HasSubstr("write [[optimizer.param_groups]]"));
}

// A backtracking engine would need years for this pattern.
TEST(ParamGroupsTest, PatternsMatchInLinearTime) {
  EXPECT_THAT(refusal(R"([{"pattern": "^(([a-z._]+)+)+#$"}])"), HasSubstr("matches no parameter"));
}

std::map<std::string, std::string> rules_by_name(const OptimizerSection& optimizer, const std::string& family,
                                                 const std::string& flavor) {
  const std::vector<models::ParameterSpec> parameters = models::parameters(*models::find(family, flavor));
  EXPECT_TRUE(check_groups(optimizer, parameters).empty());
  const UpdateRules rules = update_rules(optimizer, parameters);
  std::map<std::string, std::string> names;
  for (size_t i = 0; i < parameters.size(); ++i) names[parameters[i].fqn] = rules.rules[rules.of[i]].name;
  return names;
}

// By default Muon takes only the matrices of layers, and those of experts one by one; no router, bias, norm, embedding
// or head.
TEST(UpdateRulesTest, MuonTakesHiddenMatrices) {
  const OptimizerSection muon{.name = "Muon"};
  auto names = rules_by_name(muon, "llama3", "debugmodel");
  for (const char* fqn :
       {"layers.0.attention.wq.weight", "layers.1.attention.wo.weight", "layers.0.feed_forward.w2.weight"})
    EXPECT_EQ(names[fqn], "Muon") << fqn;
  for (const char* fqn : {"tok_embeddings.weight", "output.weight", "norm.weight", "layers.0.ffn_norm.weight"})
    EXPECT_EQ(names[fqn], "AdamW") << fqn;
  names = rules_by_name(muon, "deepseek_v3", "debugmodel");
  for (const char* fqn :
       {"layers.1.moe.experts.w1", "layers.1.moe.shared_experts.w1.weight", "layers.0.attention.wkv_a.weight"})
    EXPECT_EQ(names[fqn], "Muon") << fqn;
  EXPECT_EQ(names["layers.1.moe.router.gate.weight"], "AdamW");
  names = rules_by_name(muon, "gpt_oss", "debugmodel");
  EXPECT_EQ(names["layers.0.moe.experts.mlp1_weight"], "Muon");
  EXPECT_EQ(names["layers.0.moe.experts.mlp1_bias"], "AdamW");
  EXPECT_EQ(names["layers.0.attention.sinks"], "AdamW");
}

// A parameter goes to the first pattern that matches. Options that a group leaves unset come from [optimizer]. Rules
// without parameters are dropped.
TEST(UpdateRulesTest, TheFirstGroupTakesAParameter) {
  OptimizerSection optimizer{.name = "AdamW", .lr = 1e-3, .weight_decay = 0.2};
  optimizer.param_groups = {{.pattern = "attention_norm", .weight_decay = 0},
                            {.pattern = "norm", .lr_factor = 3},
                            {.pattern = R"(w[123]\.weight)", .name = "Muon", .lr = 0.05, .adjust_lr = "original"}};
  const std::vector<models::ParameterSpec> parameters = models::parameters(*models::find("llama3", "debugmodel"));
  ASSERT_TRUE(check_groups(optimizer, parameters).empty());
  const UpdateRules all = update_rules(optimizer, parameters);
  ASSERT_EQ(all.rules.size(), 4u);
  const auto of = [&](const std::string& fqn) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].fqn == fqn) return all.rules[all.of[i]];
    }
    return UpdateRule();
  };
  EXPECT_EQ(of("layers.3.attention_norm.weight").weight_decay, 0);
  EXPECT_EQ(of("layers.3.attention_norm.weight").lr, 1e-3);
  EXPECT_EQ(of("layers.3.ffn_norm.weight").lr, 3e-3);
  EXPECT_EQ(of("layers.3.ffn_norm.weight").weight_decay, 0.2);
  EXPECT_EQ(of("layers.3.feed_forward.w2.weight").name, "Muon");
  EXPECT_EQ(of("layers.3.feed_forward.w2.weight").lr, 0.05);
  EXPECT_EQ(of("layers.3.feed_forward.w2.weight").momentum, 0.95);
  EXPECT_EQ(of("layers.3.feed_forward.w2.weight").adjust_lr, "original");
  EXPECT_EQ(of("output.weight").pattern, "");
  EXPECT_TRUE(all.use("Muon"));
  EXPECT_FALSE(all.use("Adam"));
  // A group without an optimizer name is split as [optimizer] is.
  const OptimizerSection muon{.name = "Muon", .param_groups = {{.pattern = "layers.0", .lr = 1}}};
  EXPECT_EQ(update_rules(muon, parameters).rules.size(), 4u);
}

}  // namespace
}  // namespace titan::config
