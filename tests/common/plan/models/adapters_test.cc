#include "common/plan/models/adapters.h"

#include <gtest/gtest.h>

#include "common/plan/models/activations.h"
#include "common/plan/models/registry.h"

namespace titan::models {
namespace {

ModelSpec deepseek() { return find("deepseek_v3", "debugmodel").value(); }

// Each expert has its own adapter, which counts per token as the expert does.
TEST(AdaptersTest, EachExpertHasAnAdapter) {
  const ModelSpec spec = deepseek();
  const int64_t experts = spec.moe->num_experts, hidden = spec.moe->hidden,
                layers = spec.n_layers - spec.moe->first_layer;
  const AdapterSpec adapters{.rank = 3, .targets = {"moe.experts"}};
  const std::vector<ParameterSpec> tensors = adapter_tensors(spec, adapters);
  ASSERT_EQ(tensors.size(), static_cast<size_t>(layers * 3 * 2));
  EXPECT_EQ(tensors[0].fqn, "layers.1.moe.experts.w1.lora_A.weight");
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{experts, 3, spec.dim}));
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{experts, hidden, 3}));
  EXPECT_EQ(tensors[0].role, ParameterRole::kExpert);

  int64_t frozen = 0;
  for (const BlockSize& block : block_sizes(spec)) frozen += block.active_params;
  const int64_t active = layers * 3 * 3 * (spec.dim + hidden) * spec.moe->top_k;
  EXPECT_EQ(adapter_flops_per_token(spec, adapters, 512), flops_per_token(spec, 512) - 2 * frozen + 6 * active);
}

TEST(AdaptersTest, AdaptableAndPackableTensors) {
  const auto one = [](std::string fqn, std::vector<int64_t> shape, ParameterRole role) {
    const ParameterSpec tensor{std::move(fqn), std::move(shape), role};
    return std::pair(takes_adapter(tensor), may_be_packed(tensor));
  };
  EXPECT_EQ(one("layers.0.attention.wq.weight", {8, 8}, ParameterRole::kDense), std::pair(true, true));
  EXPECT_EQ(one("layers.1.moe.experts.w2", {4, 8, 8}, ParameterRole::kExpert), std::pair(true, false));
  EXPECT_EQ(one("layers.1.moe.experts.mlp1_weight", {4, 16, 8}, ParameterRole::kExpert), std::pair(false, false));
  EXPECT_EQ(one("layers.1.moe.router.gate.weight", {4, 8}, ParameterRole::kRouter), std::pair(false, false));
  EXPECT_EQ(layer_of("layers.1.moe.experts.w2"), "layers.1.moe.experts.w2");
  EXPECT_EQ(layer_of("layers.1.moe.shared_experts.w2.weight"), "layers.1.moe.shared_experts.w2");
}

// With a memory budget an adapter's two products compete with the layer's own. The policy by operation saves none of
// them.
TEST(AdaptersTest, MemoryBudgetIncludesAdapterProducts) {
  const ModelSpec spec = find("llama3", "debugmodel").value();
  ActivationShape shape{.tokens = 64, .keys = 64};
  const BlockActivations plain = block_activations(spec, shape)[1];
  shape.adapters = AdapterSpec{.rank = 4, .targets = {"layers.0.attention.wq", "w2"}};
  const BlockActivations adapted = block_activations(spec, shape)[1], other = block_activations(spec, shape)[2];
  EXPECT_EQ(adapted.costly.size(), plain.costly.size() + 4);
  EXPECT_EQ(other.costly.size(), plain.costly.size() + 2);
  EXPECT_EQ(adapted.by_operation, plain.by_operation);
  EXPECT_EQ(adapted.costly[1].bytes, 64 * 4 * 2);
  EXPECT_EQ(adapted.costly[2].bytes, adapted.costly[0].bytes);
  EXPECT_EQ(adapted.costly[2].flops, 2.0 * 64 * 4 * static_cast<double>(spec.n_heads * spec.head_dim));
}

}  // namespace
}  // namespace titan::models
