#include "worker/rank/nn/moe.h"

#include <ATen/native/Resize.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/flop_counter.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/plain_moe.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/meta_kernels.h"

namespace titan::nn {
namespace {

using testing::moe_bias;
using testing::moe_kinds;
using testing::moe_value;
using testing::PlainMoe;

class MoeBlock : public Block {
 public:
  explicit MoeBlock(const MoeOptions& options)
      : Block("layers.0"), moe(declare(), declare_buffer("moe.expert_bias"), "moe", options) {}
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) override {
    return moe.forward(input, context.counting);
  }
  MixtureOfExperts moe;
};

std::vector<at::Tensor> fill(Block& block, at::ScalarType type) {
  std::vector<at::Tensor> leaves;
  for (Parameter& parameter : block.parameters()) {
    parameter.weight = moe_value(parameter.fqn, parameter.shape, type).set_requires_grad(true);
    leaves.push_back(parameter.weight);
  }
  return leaves;
}

// Returns the oracle with its own values, and these as leaves in the order of the block's parameters.
std::pair<PlainMoe, std::vector<at::Tensor>> oracle(const MoeOptions& options, Block& names) {
  PlainMoe plain{options, {}, {}};
  std::vector<at::Tensor> leaves;
  for (Parameter& parameter : names.parameters()) {
    leaves.push_back(moe_value(parameter.fqn, parameter.global_shape, at::kDouble).set_requires_grad(true));
    plain.weights[parameter.fqn.substr(4)] = leaves.back();
  }
  return {plain, leaves};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs().max() / std::max(1.0, b.abs().max().item<double>()))
      .item<double>();
}

void check_against_plain(at::ScalarType type, double tolerance) {
  for (const auto& [name, options] : moe_kinds()) {
    for (const bool skewed : {false, true}) {
      SCOPED_TRACE(::testing::Message() << name << (skewed ? ", empty experts" : ""));
      MoeBlock block(options);
      std::vector<at::Tensor> leaves = fill(block, type);
      auto [plain, plain_leaves] = oracle(options, block);
      plain.bias = moe_bias(8, skewed, at::kDouble);
      block.buffers()[0].value = plain.bias.to(accumulate_type(type));
      // The numbers are those of fp32, so that both sides have the same; the smallest margin of a choice is far above
      // fp32's rounding.
      const at::Tensor x = moe_value("input", {2, 9, options.dim}, at::kFloat).to(type);
      const at::Tensor seed = moe_value("seed", {2, 9, options.dim}, type);
      leaves.push_back(x.clone().set_requires_grad(true));
      plain_leaves.push_back(x.to(at::kDouble).set_requires_grad(true));
      const at::Tensor y = block.forward(leaves.back(), {});
      const at::Tensor expected = plain.forward(plain_leaves.back());
      EXPECT_LE(distance(y.detach(), expected.detach()), tolerance);
      EXPECT_TRUE(block.moe.tokens_per_expert.equal(plain.counts(x.to(at::kDouble).flatten(0, 1))));
      if (skewed) {
        EXPECT_EQ(block.moe.tokens_per_expert.narrow(0, 4, 4).sum().item<int64_t>(), 0);
      }
      const auto gradients = torch::autograd::grad({y}, leaves, {seed});
      const auto expected_gradients = torch::autograd::grad({expected}, plain_leaves, {seed.to(at::kDouble)});
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_LE(distance(gradients[i], expected_gradients[i]), tolerance)
            << (i < block.parameters().size() ? block.parameters()[i].fqn : "input");
      }
    }
  }
}

TEST(MixtureOfExpertsTest, EqualsDenseLoopInFloat64) { check_against_plain(at::kDouble, 1e-13); }
TEST(MixtureOfExpertsTest, EqualsDenseLoopInFloat32) { check_against_plain(at::kFloat, 2e-5); }

// In bf16 the router and the weighting of outputs stay in fp32, so only the rounding of logits, products and rows is
// visible.
TEST(MixtureOfExpertsTest, IsCloseInBFloat16) {
  kernels::testing::with_every_choice([] {
    for (const auto& [name, kind] : moe_kinds()) {
      SCOPED_TRACE(name);
      MoeOptions options = kind;
      // Too high to clamp: a sum that rounding moves across the limit has another gradient.
      if (options.swiglu_limit > 0) options.swiglu_limit = 7;
      MoeBlock block(options);
      std::vector<at::Tensor> leaves = fill(block, at::kBFloat16);
      const at::Tensor x = moe_value("input", {2, 16, options.dim}, at::kBFloat16);
      const at::Tensor seed = moe_value("seed", {2, 16, options.dim}, at::kBFloat16);
      PlainMoe plain{options, {}, {}, block.moe.route(x.flatten(0, 1)).experts};
      std::vector<at::Tensor> exact;
      for (size_t i = 0; i < leaves.size(); ++i) {
        exact.push_back(leaves[i].detach().to(at::kDouble).set_requires_grad(true));
        plain.weights[block.parameters()[i].fqn.substr(4)] = exact.back();
      }
      leaves.push_back(x.clone().set_requires_grad(true));
      exact.push_back(x.to(at::kDouble).set_requires_grad(true));
      const at::Tensor y = block.forward(leaves.back(), {}), expected = plain.forward(exact.back());
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_LE(distance(y.detach(), expected.detach()), 0.03);
      const auto gradients = torch::autograd::grad({y}, leaves, {seed});
      const auto expected_gradients = torch::autograd::grad({expected}, exact, {seed.to(at::kDouble)});
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_LE(distance(gradients[i], expected_gradients[i]), 0.03)
            << (i < block.parameters().size() ? block.parameters()[i].fqn : "input");
      }
    }
  });
}

TEST(MixtureOfExpertsTest, RecomputationDoesNotCountTokens) {
  MoeBlock block(moe_kinds()[2].options);
  fill(block, at::kDouble);
  const at::Tensor x = moe_value("input", {1, 10, 12}, at::kDouble);
  MicrobatchContext context;
  block.forward(x, context);
  context.counting = false;
  block.forward(x, context);
  EXPECT_EQ(block.moe.tokens_per_expert.sum().item<int64_t>(), 10 * 3);
}

TEST(MixtureOfExpertsTest, ForcedBalanceGivesAllExpertsTheSame) {
  MoeBlock block(moe_kinds()[3].options);
  fill(block, at::kDouble);
  block.buffers()[0].value = moe_bias(8, /*skewed=*/true, at::kDouble);
  block.moe.force_balance();
  block.forward(moe_value("input", {1, 12, 12}, at::kDouble), {});
  EXPECT_TRUE(block.moe.tokens_per_expert.eq(3).all().item<bool>());
}

// The weights' storage may be empty between the passes: the backward pass reads the refilled values.
TEST(MixtureOfExpertsTest, WeightsMayBeFreedBetweenThePasses) {
  for (const auto& [name, options] : moe_kinds()) {
    MoeBlock block(options);
    const std::vector<at::Tensor> leaves = fill(block, at::kDouble);
    const at::Tensor x = moe_value("input", {1, 10, 12}, at::kDouble);
    const auto unfreed = torch::autograd::grad({block.forward(x, {}).sum()}, leaves);
    const at::Tensor y = block.forward(x, {}).sum();
    std::vector<at::Tensor> values;
    for (const at::Tensor& leaf : leaves) {
      values.push_back(leaf.detach().clone());
      at::native::resize_bytes_cpu(leaf.storage().unsafeGetStorageImpl(), 0);
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      at::native::resize_bytes_cpu(leaves[i].storage().unsafeGetStorageImpl(), values[i].nbytes());
      leaves[i].variable_data().copy_(values[i]);
    }
    const auto again = torch::autograd::grad({y}, leaves);
    for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(unfreed[i].equal(again[i])) << name << " " << i;
  }
}

// The gradients of all the experts' weights can be left for later, and stay the same.
TEST(MixtureOfExpertsTest, WeightGradientsCanBeDeferred) {
  for (const auto& [name, options] : moe_kinds()) {
    MoeBlock block(options);
    std::vector<at::Tensor> leaves = fill(block, at::kDouble);
    leaves.push_back(moe_value("input", {1, 10, 12}, at::kDouble).set_requires_grad(true));
    const auto at_once = torch::autograd::grad({block.forward(leaves.back(), {}).sum()}, leaves);
    DeferredGradients deferred;
    GradientQueue queue;
    for (Parameter* parameter : block.moe.experts.parameters) parameter->deferred = &deferred;
    const at::Tensor y = block.forward(leaves.back(), {}).sum();
    deferred.open(queue);
    const auto now = torch::autograd::grad({y}, leaves, {}, {}, false, /*allow_unused=*/true);
    deferred.close();
    EXPECT_TRUE(now.back().equal(at_once.back()));
    EXPECT_EQ(queue.size(), options.swiglu_limit > 0 ? 2U : 3U);
    for (const DeferredGradient& one : queue) {
      size_t index = 0;
      while (&block.parameters()[index] != one.parameter) ++index;
      EXPECT_FALSE(now[index].defined());
      EXPECT_TRUE(one.compute().equal(at_once[index])) << name << " " << one.parameter->fqn;
    }
  }
}

// A forward pass computes the gate, each chosen expert's three products and the shared experts, and nothing else. Both
// passes together cost three times as much.
TEST(MixtureOfExpertsTest, ComputesOnlyChosenExperts) {
  for (const auto& [name, options] : moe_kinds()) {
    MoeBlock block(options);
    std::vector<at::Tensor> leaves = fill(block, at::kDouble);
    leaves.push_back(moe_value("input", {1, 10, 12}, at::kDouble).set_requires_grad(true));
    testing::FlopCounter flops;
    const at::Tensor y = block.forward(leaves.back(), {}).sum();
    const int64_t forward =
        2 * 10 * options.dim * (8 + 3 * options.router.top_k * options.hidden + 3 * options.shared_hidden);
    EXPECT_EQ(flops.products(), forward) << name;
    torch::autograd::grad({y}, leaves);
    EXPECT_EQ(flops.products(), 3 * forward) << name;
  }
}

// A dry run has only shapes, and loads all experts evenly.
TEST(MixtureOfExpertsTest, RunsOnMetaTensors) {
  use_meta_kernels();
  for (const auto& [name, options] : moe_kinds()) {
    MoeBlock block(options);
    std::vector<at::Tensor> leaves;
    for (Parameter& parameter : block.parameters()) {
      parameter.weight = at::empty(parameter.shape, at::TensorOptions(at::kMeta)).set_requires_grad(true);
      leaves.push_back(parameter.weight);
    }
    block.buffers()[0].value = at::zeros({8}, at::TensorOptions(at::kMeta));
    leaves.push_back(at::empty({2, 5, options.dim}, at::TensorOptions(at::kMeta)).set_requires_grad(true));
    const at::Tensor y = block.forward(leaves.back(), {});
    EXPECT_EQ(y.sizes(), leaves.back().sizes()) << name;
    EXPECT_EQ(torch::autograd::grad({y.sum()}, leaves).size(), leaves.size());
  }
  EXPECT_EQ(counts_on_host(at::empty({4}, at::TensorOptions(at::kMeta).dtype(at::kLong)), 6),
            (std::vector<int64_t>{1, 2, 1, 2}));
}

}  // namespace
}  // namespace titan::nn
