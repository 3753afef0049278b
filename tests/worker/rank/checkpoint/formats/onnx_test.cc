// Tests the parts of ONNX exports that small models do not reach: every member of a spec is computed or refused by
// name, every parameter has a place, and large files have aligned places.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <protozero/pbf_reader.hpp>

#include "common/plan/models/registry.h"
#include "worker/rank/checkpoint/formats/onnx/genai_config.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_decoder.h"

namespace titan::checkpoint::onnx {
namespace {

using ::testing::HasSubstr;

const Target kStandard, kMicrosoftTarget{.microsoft = true, .opset = 21};

std::string refusal(const models::ModelSpec& spec, const Target& target) {
  return std::string(check_graph(spec, target).message());
}

TEST(OnnxGraphCheck, TakesEveryReleasedDecoder) {
  for (const std::string family : {"llama3", "llama4", "deepseek_v3", "qwen3", "gpt_oss"}) {
    for (const std::string& flavor : models::flavors(family)) {
      EXPECT_EQ(refusal(*models::find(family, flavor), kStandard), "") << family << " " << flavor;
      EXPECT_EQ(refusal(*models::find(family, flavor), kMicrosoftTarget), "") << family << " " << flavor;
    }
  }
}

TEST(OnnxGraphCheck, NamesWhatItDoesNotCompute) {
  EXPECT_THAT(refusal(*models::find("vlm", "debugmodel"), kStandard), HasSubstr("vlm reads images"));
  EXPECT_THAT(refusal(*models::find("flux", "flux-debug"), kStandard), HasSubstr("flux is not a decoder of text"));
  models::ModelSpec experts = *models::find("llama4", "debugmodel");
  experts.moe->top_k = 2;
  EXPECT_EQ(refusal(experts, kStandard), "");
  EXPECT_THAT(refusal(experts, kMicrosoftTarget), HasSubstr("moe.score_before_experts"));
  experts.swiglu_limit = 7;
  EXPECT_THAT(refusal(experts, kStandard), HasSubstr("swiglu_limit"));
  models::ModelSpec heads = *models::find("llama3", "debugmodel");
  heads.head_dim = heads.v_head_dim = 12;
  EXPECT_EQ(refusal(heads, kStandard), "");
  EXPECT_THAT(refusal(heads, kMicrosoftTarget), HasSubstr("multiple of 8, not 12: use --onnx-operators standard"));
}

TEST(OnnxGraphCheck, NamesTheFlagForAnOpset) {
  const models::ModelSpec spec = *models::find("llama3", "debugmodel");
  EXPECT_THAT(refusal(spec, {.opset = 22}), HasSubstr("or --onnx-operators microsoft"));
  EXPECT_THAT(refusal(spec, {.opset = 26}), HasSubstr("--onnx-opset 26: use 23 to 25"));
  EXPECT_THAT(refusal(spec, {.microsoft = true, .opset = 20}), HasSubstr("use 21 to 25"));
  EXPECT_EQ(refusal(spec, {.microsoft = true, .opset = 22}), "");
}

Manifest manifest_with(const std::string& key, std::vector<int64_t> shape) {
  Manifest manifest;
  manifest.tensors.push_back({.key = key, .dtype = at::kFloat, .shape = std::move(shape)});
  return manifest;
}

// A parameter that a layer gets later would otherwise be left out of the graph without a word.
TEST(OnnxWeights, ListsParametersThatNothingUses) {
  Manifest manifest = manifest_with("model.layers.0.attention.gate.weight", {4});
  manifest.tensors.push_back({.key = "optimizer.state", .dtype = at::kFloat, .shape = {4}});
  EXPECT_EQ(Weights(manifest).unused(), std::vector<std::string>{"layers.0.attention.gate.weight"});
}

TEST(OnnxWeights, HaveAlignedPlacesBeyondTwoGibibytes) {
  constexpr int64_t kRows = int64_t{1} << 20, kColumns = 1001;
  const Manifest manifest = manifest_with("model.output.weight", {kRows, kColumns});
  Weights weights(manifest);
  EXPECT_EQ(weights.add("output.weight", Type::kFloat, Form::kTransposed), "output.weight");
  weights.add_value("ones", at::ones({3}), Type::kFloat16);
  weights.add_value("more", at::ones({3}), Type::kFloat);
  const std::vector<External> all = places(weights.all());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].dims, (std::vector<int64_t>{kColumns, kRows}));
  EXPECT_EQ(all[0].length, kRows * kColumns * 4);
  EXPECT_EQ(all[1].offset, kRows * kColumns * 4);
  EXPECT_EQ(all[1].length, 6);
  EXPECT_EQ(all[2].offset, all[1].offset + kAlignment);
  EXPECT_TRUE(weights.unused().empty());
}

TEST(OnnxWeights, AreUsedInOneForm) {
  const Manifest manifest = manifest_with("model.output.weight", {4, 4});
  Weights weights(manifest);
  weights.add("output.weight", Type::kFloat);
  EXPECT_EQ(weights.add("output.weight", Type::kFloat), "output.weight");
  EXPECT_THROW(weights.add("output.weight", Type::kFloat, Form::kTransposed), c10::Error);
  EXPECT_THROW(weights.add("other.weight", Type::kFloat), c10::Error);
  EXPECT_EQ(weights.all().size(), 1u);
}

TEST(OnnxFile, ImportsTheDomainsThatNodesUse) {
  const auto domains = [](const Graph& graph) {
    const std::string bytes = serialized(graph, {}, {.opset = 24});
    constexpr uint32_t kIrVersion = 1, kOpset = 8, kDomain = 1;
    std::vector<std::string> found;
    for (protozero::pbf_reader model(bytes); model.next();) {
      if (model.tag() == kIrVersion) {
        EXPECT_EQ(model.get_int64(), 12);
      } else if (model.tag() == kOpset) {
        protozero::pbf_reader opset = model.get_message();
        opset.next(kDomain);
        found.push_back(opset.get_string());
      } else {
        model.skip();
      }
    }
    return found;
  };
  Graph graph;
  EXPECT_EQ(graph.integer(3), graph.integer(3));
  EXPECT_NE(graph.integer(3), graph.integers({3}));
  EXPECT_NE(graph.add({.op = "Add"}), graph.add({.op = "Add"}));
  EXPECT_EQ(domains(graph), std::vector<std::string>{""});
  graph.add({.op = "MoE", .domain = kMicrosoft});
  EXPECT_EQ(domains(graph), (std::vector<std::string>{"", kMicrosoft}));
}

TEST(GenaiConfig, NamesNoTokensThatNobodyKnows) {
  const models::ModelSpec spec = *models::find("deepseek_v3", "16B");
  const nlohmann::json config = genai_config(spec, {.file = "model.onnx", .context = 64});
  EXPECT_FALSE(config["model"].contains("eos_token_id"));
  EXPECT_FALSE(config["model"].contains("bos_token_id"));
  EXPECT_EQ(config["model"]["decoder"]["head_size"], 192);
  EXPECT_EQ(config["model"]["decoder"]["num_key_value_heads"], 16);
  EXPECT_EQ(config["search"]["max_length"], 64);
}

}  // namespace
}  // namespace titan::checkpoint::onnx
