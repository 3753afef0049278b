// [[training.dataloader.sources]]: every form in which it can be written, and the meaning of weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/plan/config/data_sources.h"
#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/validate.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<DataSource> kSources = {
    {.name = "web", .dataset_path = "web/*.jsonl", .weight = 0.7, .weight_at_step = {"1000: 0.5", "2000: 0"}},
    {.name = "code",
     .dataset_path = "code",
     .weight = 0.3,
     .repeat = false,
     .format = "parquet",
     .text_key = "content"},
};

constexpr char kSourcesToml[] = R"([[training.dataloader.sources]]
name = "web"
dataset_path = "web/*.jsonl"
weight = 0.7
weight_at_step = ["1000: 0.5", "2000: 0"]
[[training.dataloader.sources]]
name = "code"
dataset_path = "code"
weight = 0.3
repeat = false
format = "parquet"
text_key = "content"
)";

constexpr char kSourcesYaml[] = R"(training:
  dataloader:
    sources:
      - {name: web, dataset_path: web/*.jsonl, weight: 0.7, weight_at_step: ["1000: 0.5", "2000: 0"]}
      - {name: code, dataset_path: code, weight: 0.3, repeat: false, format: parquet, text_key: content}
)";

constexpr char kList[] = R"([{"name": "web", "dataset_path": "web/*.jsonl", "weight": 0.7,
  "weight_at_step": ["1000: 0.5", "2000: 0"]},
 {"name": "code", "dataset_path": "code", "weight": 0.3, "repeat": false, "format": "parquet",
  "text_key": "content"}])";

absl::StatusOr<LoadedConfig> load_sources(const std::string& text, const std::vector<std::string>& words = {}) {
  return load_text(text, ConfigFormat::kToml, "a.toml", words);
}

TEST(SourcesTest, AreReadFromEveryForm) {
  const std::string json = R"({"training": {"dataloader": {"sources": )" + std::string(kList) + "}}}";
  const std::map<ConfigFormat, std::string> texts = {
      {ConfigFormat::kToml, kSourcesToml}, {ConfigFormat::kYaml, kSourcesYaml}, {ConfigFormat::kJson, json}};
  for (const auto& [format, text] : texts) {
    const auto loaded = load_text(text, format, "file");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->config.training.dataloader.sources, kSources) << text;
    EXPECT_TRUE(validate(*loaded).ok()) << validate(*loaded).message();
    EXPECT_EQ(load_sources(to_toml(loaded->config))->config.training.dataloader.sources, kSources);
    EXPECT_EQ(from_json(to_json(loaded->config))->training.dataloader.sources, kSources);
  }
  const auto words = load_sources("", {"--training.dataloader.sources", kList});
  ASSERT_TRUE(words.ok()) << words.status().message();
  EXPECT_EQ(words->config.training.dataloader.sources, kSources);
}

// A worker's current folder differs from that of the submitting user.
TEST(SourcesTest, VisitsItsPaths) {
  auto loaded = load_sources(kSourcesToml);
  ASSERT_TRUE(loaded.ok());
  visit_paths(loaded->config, [](const std::string&, std::string& path) { path = "/here/" + path; });
  EXPECT_EQ(loaded->config.training.dataloader.sources[1].dataset_path, "/here/code");
}

TEST(SourcesTest, WeightsChangeAtSteps) {
  const auto weights = source_weights(kSources);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_THAT(*weights,
              ElementsAre(SourceWeights{1, {700'000'000, 300'000'000}}, SourceWeights{1000, {500'000'000, 300'000'000}},
                          SourceWeights{2000, {0, 300'000'000}}));
}

std::string sources_refusal(const std::string& sources, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"--training.dataloader.sources", sources};
  words.insert(words.end(), more.begin(), more.end());
  const auto loaded = load_sources("", words);
  return std::string(loaded.ok() ? validate(*loaded).message() : loaded.status().message());
}

TEST(SourcesTest, SaysWhatIsWrong) {
  const std::string good = R"([{"name": "a", "dataset_path": "x"}])";
  EXPECT_EQ(sources_refusal(good), "");
  EXPECT_THAT(sources_refusal("[{"), HasSubstr("expects a list of tables"));
  EXPECT_THAT(sources_refusal("[1]"), HasSubstr("source 1: expects a table with a name, not an integer"));
  EXPECT_THAT(sources_refusal(R"([{"dataset_path": "x"}])"), HasSubstr("source 1: has no name"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "wait": 1}])"), HasSubstr("unknown member wait"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a"}])"), HasSubstr("set its dataset_path, or its dataset"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a/b", "dataset_path": "x"}])"),
              HasSubstr("must be 1 to 63 letters, digits"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "x"}, {"name": "a", "dataset_path": "y"}])"),
              HasSubstr("two sources have this name"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "x", "weight": -1}])"), HasSubstr("out of range"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "x", "weight": 1e-12}])"), HasSubstr("at least 1e-9"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "x", "weight": 0}])"),
              HasSubstr("no source has a weight above 0 from step 1 on"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "x", "weight_at_step": ["5"]}])"),
              HasSubstr("source \"a\": weight_at_step \"5\": expects STEP: WEIGHT"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "x", "weight_at_step": ["9: 1", "5: 2"]}])"),
              HasSubstr("above the previous one"));
  EXPECT_THAT(sources_refusal(good, {"--training.dataloader.order", "per_rank"}), HasSubstr("set it to \"global\""));
  EXPECT_THAT(sources_refusal(good, {"--training.dataset_path", "x"}), HasSubstr("is ignored with"));
  EXPECT_THAT(sources_refusal(R"([{"name": "a", "dataset_path": "hf://datasets/x"}])"), HasSubstr("hf://datasets/"));
  EXPECT_THAT(sources_refusal(good, {"--training.dataloader.packing=best_fit", "--training.dataloader.shuffle=rows"}),
              HasSubstr("set shuffle = \"documents\""));
  EXPECT_THAT(sources_refusal(good, {"--validation.enable", "--validation.dataloader.sources",
                                     R"([{"name": "v", "dataset_path": "x", "weight_at_step": ["9: 1"]}])"}),
              HasSubstr("weight_at_step has no effect in validation"));
  EXPECT_THAT(std::string(load_sources("[training.dataloader.sources]\nname = \"a\"\n").status().message()),
              HasSubstr("write [[training.dataloader.sources]]"));
}

}  // namespace
}  // namespace titan::config
