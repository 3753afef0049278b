#include <gtest/gtest.h>

#include <set>

#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "common/plan/models/vision.h"

namespace titan::models {
namespace {

// The tower of torchtitan's debugmodel of Llama3Siglip2.
const VisionSpec kDebug{.dim = 128, .ffn_hidden = 256, .n_layers = 4, .n_heads = 2, .out_dim = 256};

TEST(VisionSpecTest, CountsMatchTorchtitan) {
  VisionSpec encoder = kDebug;
  encoder.out_dim = 0;
  EXPECT_EQ(parameter_count(encoder), 661376);
  EXPECT_EQ(parameter_count(kDebug) - parameter_count(encoder), 49536);
  const auto text = find("llama3", "debugmodel_flex_attn");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(parameter_count(kDebug) + parameter_count(*text), 6874624);
  EXPECT_EQ(parameters(kDebug).size() + parameters(*text).size(), 130);
}

// The whole model: what torchtitan prints of it, and the blocks of a pipeline, of which the tower's and the embedding
// stay together.
TEST(VisionSpecTest, TheDebugModelIsTorchtitans) {
  const auto model = find("vlm", "debugmodel");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(inconsistency(*model), "");
  EXPECT_EQ(parameter_count(*model), 6874624);
  EXPECT_EQ(parameters(*model).size(), 130);
  EXPECT_EQ(flops_per_token(*model, 4096), 113599488);
  const pipeline::ModelBlocks blocks = block_names(*model);
  EXPECT_EQ(blocks.layers(), 6);
  const std::vector<std::string> entry(blocks.names().begin(),
                                       blocks.names().begin() + static_cast<std::ptrdiff_t>(blocks.entry()));
  EXPECT_EQ(entry, (std::vector<std::string>{"encoder.embeddings", "encoder.layers.0", "encoder.layers.1",
                                             "encoder.layers.2", "encoder.layers.3", "projector", "tok_embeddings"}));
  std::vector<std::string> sizes;
  for (const BlockSize& block : block_sizes(*model)) sizes.push_back(block.name);
  EXPECT_EQ(sizes, blocks.names());
  EXPECT_EQ(split_sizes(*model).n_heads, 16);
}

TEST(VisionSpecTest, AModelsTowerMustFit) {
  ModelSpec model = *find("vlm", "debugmodel");
  model.vision->out_dim = 128;
  EXPECT_EQ(inconsistency(model), "vision.out_dim: 128 is not the width of the language model, dim 256");
  model.vision->n_heads = 3;
  EXPECT_EQ(inconsistency(model), "vision.n_heads: 3 does not divide dim 128");
  const nlohmann::json stored = to_json(*find("vlm", "debugmodel"));
  EXPECT_TRUE(differences(stored, *find("vlm", "debugmodel")).empty());
  const auto found = differences(stored, model);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "vision.n_heads");
  EXPECT_EQ(differences(to_json(*find("llama3", "debugmodel_flex_attn")), model).front().name, "name");
}

TEST(VisionSpecTest, EveryParameterIsInOneBlock) {
  std::set<std::string> names, blocks;
  for (const ParameterSpec& tensor : parameters(kDebug)) {
    EXPECT_TRUE(names.insert(tensor.fqn).second) << tensor.fqn;
    blocks.insert(vision_block_of(tensor.fqn));
  }
  EXPECT_EQ(blocks, (std::set<std::string>{"encoder.embeddings", "encoder.layers.0", "encoder.layers.1",
                                           "encoder.layers.2", "encoder.layers.3", "projector"}));
}

// Counts the products of one patch by hand: forward, the weights' gradients, and the inputs' gradients except of
// pixels.
TEST(VisionSpecTest, FlopsPerPatch) {
  const int64_t patches = 100, embedding = 768 * 128, layer = 4 * 128 * 128 + 2 * 128 * 256;
  const int64_t projector = 128 * 128 + 128 * 256, scores = 2 * 128 * patches;
  EXPECT_EQ(flops_per_patch(kDebug, patches), 4 * embedding + 4 * (6 * layer + 6 * scores) + 6 * projector);
}

TEST(VisionSpecTest, InconsistenciesAreNamed) {
  EXPECT_EQ(inconsistency(kDebug), "");
  EXPECT_EQ(inconsistency(VisionSpec{}), "");
  const auto broken = [](auto change) {
    VisionSpec spec = kDebug;
    change(spec);
    return inconsistency(spec);
  };
  EXPECT_EQ(broken([](VisionSpec& spec) { spec.n_heads = 3; }), "n_heads: 3 does not divide dim 128");
  EXPECT_EQ(broken([](VisionSpec& spec) { spec.patch_size = 0; }), "patch_size: 0 is not above 0");
  EXPECT_EQ(broken([](VisionSpec& spec) { spec.out_dim = -1; }), "out_dim: -1 is below 0");
  EXPECT_EQ(broken([](VisionSpec& spec) { spec.norm_eps = 0; }), "norm_eps: 0 is not above 0");
}

}  // namespace
}  // namespace titan::models
