// Tests the numbers of Qwen3-VL.
#include "common/plan/models/qwen3_vl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/plan/models/qwen3_vl_sizes.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"

namespace titan::models {
namespace {

// The released weights have these numbers, and so has transformers' class.
TEST(Qwen3VlSizesTest, HaveTheReleasedNumbersOfParameters) {
  struct Count {
    std::string flavor;
    int64_t all, tower;
    size_t tensors;
  };
  const std::vector<Count> released = {
      {"2B", 2127532032, 406957056, 625}, {"4B", 4437815808, 415347712, 713}, {"8B", 8767123696, 576388336, 750}};
  const std::vector<Qwen3VlSize> sizes = qwen3_vl_sizes();
  for (const Qwen3VlSize& size : sizes) EXPECT_EQ(inconsistency(size.text, size.vl), "") << size.text.flavor;
  for (const Count& want : released) {
    const auto size =
        std::find_if(sizes.begin(), sizes.end(), [&](const auto& one) { return one.text.flavor == want.flavor; });
    ASSERT_NE(size, sizes.end()) << want.flavor;
    int64_t tower = 0, text = 0;
    for (const ParameterSpec& tensor : parameters(size->vl.vision)) tower += tensor.numel();
    for (const ParameterSpec& tensor : parameters(size->text)) text += tensor.numel();
    EXPECT_EQ(tower, want.tower);
    EXPECT_EQ(tower + text, want.all);
    EXPECT_EQ(parameters(size->vl.vision).size() + parameters(size->text).size(), want.tensors);
  }
}

// The released sections spread rows and columns over the fast and middle pairs, and leave the slow ones to time.
TEST(Qwen3VlSizesTest, PairsTurnByTimeRowAndColumnAlternating) {
  const Qwen3VlSize size = qwen3_vl_sizes().back();
  const std::vector<int64_t> axes = mrope_axes(size.text, size.vl);
  ASSERT_EQ(axes.size(), 64u);
  for (size_t pair = 0; pair < 60; ++pair) EXPECT_EQ(axes[pair], static_cast<int64_t>(pair % 3));
  for (size_t pair = 60; pair < 64; ++pair) EXPECT_EQ(axes[pair], 0);
}

// The family's flavors are these sizes: the tower's parameters before the language model's, in the engine's blocks.
TEST(Qwen3VlFlavorsTest, HaveTheTowerBeforeTheLanguageModel) {
  for (const Qwen3VlSize& size : qwen3_vl_sizes()) {
    const auto flavor = find("qwen3_vl", size.text.flavor);
    ASSERT_TRUE(flavor.ok()) << flavor.status();
    EXPECT_EQ(inconsistency(*flavor), "");
    const Qwen3VlVisionSpec& vision = flavor->qwen3_vl->vision;
    int64_t tower = 0;
    for (const ParameterSpec& tensor : parameters(vision)) tower += tensor.numel();
    EXPECT_EQ(parameter_count(*flavor), tower + parameter_count(size.text));
    EXPECT_EQ(flops_per_token(*flavor, 2048), 6 * tower + flops_per_token(size.text, 2048));
    EXPECT_EQ(split_sizes(*flavor).n_kv_heads, size.text.n_kv_heads);
    std::vector<std::string> blocks;
    std::set<std::string> names;
    for (const BlockSize& block : block_sizes(*flavor)) blocks.push_back(block.name);
    for (const ParameterSpec& tensor : parameters(*flavor)) EXPECT_TRUE(names.insert(tensor.fqn).second) << tensor.fqn;
    EXPECT_EQ(blocks, block_names(*flavor).names());
    EXPECT_EQ(block_names(*flavor).entry(), static_cast<size_t>(vision.n_layers) + 3 + vision.deepstack_layers.size());
  }
  EXPECT_EQ(block_of(*find("qwen3_vl", "debugmodel"), "visual.deepstack_merger_list.1.norm.bias"), "visual.blocks.2");
}

TEST(Qwen3VlFlavorsTest, DifferencesAndContradictionsAreNamed) {
  const ModelSpec model = *find("qwen3_vl", "debugmodel");
  EXPECT_TRUE(differences(to_json(model), model).empty());
  ModelSpec other = model;
  other.qwen3_vl->vision.deepstack_layers = {0, 2};
  other.qwen3_vl->video_token = 7;
  const auto found = differences(to_json(model), other);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "qwen3_vl.video_token");
  EXPECT_EQ(found[1].name, "qwen3_vl.vision.deepstack_layers");
  other.qwen3_vl->vision.out_dim = 128;
  EXPECT_EQ(inconsistency(other), "qwen3_vl: out_dim: 128 is not the text's dim 256");
  other.vision = VisionSpec{.out_dim = 256};
  EXPECT_EQ(inconsistency(other), "vision: a model has one vision tower, and qwen3_vl has its own");
}

// Counts the products of one patch by hand. Mergers see a quarter as many rows as there are patches.
TEST(Qwen3VlFlavorsTest, FlopsPerPatch) {
  const Qwen3VlVisionSpec vision = find("qwen3_vl", "debugmodel")->qwen3_vl->vision;
  const int64_t patches = 64, embedding = 1536 * 128, layer = 4 * 128 * 128 + 2 * 128 * 256, scores = 2 * 128 * patches;
  const int64_t merger = 512 * 512 + 512 * 256;
  EXPECT_EQ(flops_per_patch(vision, patches), 4 * embedding + 4 * (6 * layer + 6 * scores) + 3 * 6 * merger / 4);
}

}  // namespace
}  // namespace titan::models
