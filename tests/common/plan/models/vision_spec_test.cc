#include "common/plan/models/vision_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "common/plan/models/registry.h"

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
