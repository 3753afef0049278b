#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/parallel/shard_unit.h"
#include "worker/rank/parallel/weight_gather.h"

namespace titan::parallel {
namespace {

using mesh::Axis;

std::deque<nn::Parameter> two_weights() {
  std::deque<nn::Parameter> parameters;
  parameters.push_back({"one", {37, 16}, {}, {}});  // The number of rows does not divide by the ranks.
  parameters.push_back({"other", {16, 32}, {}, {}});
  return parameters;
}

at::Tensor drawn(const nn::Parameter& parameter, int seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randn(parameter.shape, generator, at::kFloat);
}

struct Gathered {
  std::vector<nn::Operand> weights;
  int64_t gather_bytes = 0, scale_calls = 0;
};

// Gathers two weights on a rank, each drawn from its index and `seed`.
Gathered gather(testing::ThreadRank& self, std::deque<nn::Parameter>& parameters, const Float8Gather& recipe,
                ShardUnit& unit, int seed) {
  std::vector<const ShardedParameter*> placed;
  for (ShardedParameter& one : unit.parameters()) {
    if (one.rows > 0) one.value.copy_(one.piece_of(drawn(*one.parameter, seed)));
    placed.push_back(&one);
  }
  const comm::LedgerCounts before = self.ledger.counts();
  if (recipe.precomputes()) recipe.precompute(placed, at::kCPU);
  unit.unshard();
  comm::LedgerCounts traffic = comm::subtract(self.ledger.counts(), before);
  Gathered result{{}, traffic["fsdp/all_gather"].bytes, traffic["fsdp/all_reduce"].calls};
  for (const nn::Parameter& parameter : parameters) {
    result.weights.push_back({parameter.arrived.values.clone(), parameter.arrived.scales.clone(), at::kFloat});
  }
  unit.reshard();
  return result;
}

// The gathered weight equals, bit for bit, the quantization of the whole weight, at one byte per element.
TEST(Float8GatherTest, EqualsTheQuantizedGatheredWeight) {
  const auto products = nn::make_low_precision_recipe({.recipe = nn::LowPrecisionRecipe::kFloat8Tensorwise});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool precomputes : {false, true}) {
      testing::run_ranks({}, 3, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
        const comm::Group& group = self.mesh->group(Axis::kFsdp);
        std::deque<nn::Parameter> parameters = two_weights();
        const Float8Gather recipe(group, nullptr, type, precomputes);
        ShardUnit unit(
            "unit", {&parameters[0], &parameters[1]},
            {.shard_group = &group, .device = self.device.get(), .precision = {.param = type}, .gather = &recipe});
        for (const int seed : {1, 2}) {  // The weights of the second step have other scales.
          const Gathered got = gather(self, parameters, recipe, unit, seed);
          EXPECT_EQ(got.gather_bytes, 3 * (13 * 16 + 6 * 32));
          EXPECT_EQ(got.scale_calls, 1);
          for (size_t i = 0; i < parameters.size(); ++i) {
            const nn::Operand truth = products->of_weight(drawn(parameters[i], seed).to(type));
            EXPECT_TRUE(got.weights[i].values.view(at::kByte).equal(truth.values.view(at::kByte)));
            EXPECT_TRUE(got.weights[i].scales.equal(truth.scales));
          }
        }
      });
    }
  }
}

// If weights are gathered into a slot, their scales are written to the same memory each time, where a device's graph
// reads them.
TEST(Float8GatherTest, ScalesStayInPlaceInASlot) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kFsdp);
    std::deque<nn::Parameter> parameters = two_weights();
    const Float8Gather recipe(group, nullptr, at::kFloat, /*precomputes=*/false);
    ShardUnit unit("unit", {&parameters[0], &parameters[1]},
                   {.shard_group = &group, .device = self.device.get(), .gather = &recipe});
    unit.gather_into(std::make_shared<WeightSlot>(unit.weight_bytes(), at::kCPU));
    const Gathered first = gather(self, parameters, recipe, unit, /*seed=*/1);
    const at::Tensor scale = parameters[0].arrived.scales;
    const Gathered second = gather(self, parameters, recipe, unit, /*seed=*/2);
    EXPECT_TRUE(scale.is_same(parameters[0].arrived.scales));
    EXPECT_TRUE(scale.equal(second.weights[0].scales));
    EXPECT_FALSE(scale.equal(first.weights[0].scales));
  });
}

// A weight whose scale was not computed is not sent with a wrong one.
TEST(Float8GatherTest, RefusesToGatherWithoutPrecomputedScales) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kFsdp);
    std::deque<nn::Parameter> parameters = two_weights();
    const Float8Gather recipe(group, nullptr, at::kFloat, /*precomputes=*/true);
    ShardUnit unit("unit", {&parameters[0]}, {.shard_group = &group, .device = self.device.get(), .gather = &recipe});
    EXPECT_THROW(unit.begin_unshard(), c10::Error);
  });
}

}  // namespace
}  // namespace titan::parallel
