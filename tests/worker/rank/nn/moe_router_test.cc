#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "worker/rank/nn/moe.h"

// Tests the router in bf16, with and without Titan's own kernels. Its gate is the identity: each token is its own
// logits, and nothing is rounded before the scores.
namespace titan::nn {
namespace {

class RouterBlock : public Block {
 public:
  explicit RouterBlock(const RouterOptions& router)
      : Block("layers.0"), moe(declare(), declare_buffer("moe.expert_bias"), "moe", options(router)) {
    moe.gate.weight().weight = at::eye(router.num_experts).to(at::kBFloat16);
  }
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext&) override { return moe.forward(input); }
  MixtureOfExperts moe;

 private:
  static MoeOptions options(const RouterOptions& router) {
    return {.router = router, .dim = router.num_experts, .hidden = 1};
  }
};

std::vector<RouterOptions> routers() {
  std::vector<RouterOptions> all;
  for (const bool softmax : {false, true}) {
    for (const bool norm : {false, true}) {
      all.push_back({.num_experts = 8, .top_k = 1, .softmax = softmax, .route_norm = norm});
      all.push_back({.num_experts = 4, .top_k = 4, .softmax = softmax, .route_norm = norm, .route_scale = 2.5});
      all.push_back({.num_experts = 33, .top_k = 3, .softmax = softmax, .route_norm = norm});
      all.push_back({.num_experts = 64,
                     .top_k = 6,
                     .softmax = softmax,
                     .route_norm = norm,
                     .route_scale = 16,
                     .num_groups = 8,
                     .limited_groups = 3});
    }
  }
  // These have more experts, or choices, than the kernels support.
  all.push_back({.num_experts = 1030, .top_k = 2, .softmax = true});
  all.push_back({.num_experts = 130, .top_k = 65, .route_norm = true});
  return all;
}

std::string words(const RouterOptions& router, int64_t tokens) {
  return std::to_string(tokens) + " tokens, " + std::to_string(router.top_k) + " of " +
         std::to_string(router.num_experts) + (router.softmax ? ", softmax" : ", sigmoid") +
         (router.route_norm ? ", normalized" : "") + (router.num_groups > 0 ? ", groups" : "");
}

at::Tensor exact_scores(const at::Tensor& logits, const at::Tensor& experts, const RouterOptions& router) {
  const at::Tensor powers = at::exp(router.softmax ? logits : -logits);
  const at::Tensor all = router.softmax ? powers / powers.sum(1, true) : 1 / (1 + powers);
  const at::Tensor chosen = all.gather(1, experts);
  return (router.route_norm ? chosen / chosen.sum(1, true) : chosen) * router.route_scale;
}

TEST(RouterTest, ScoresAndGradientsMatchFp64) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(1);
    titan::testing::Draw pick(1);
    for (const RouterOptions& router : routers()) {
      const int64_t tokens = pick({1, 7, 40});
      SCOPED_TRACE(words(router, tokens));
      RouterBlock block(router);
      if (pick({0, 1}) == 1) block.buffers()[0].value = at::randn({router.num_experts}) * 0.1;
      const at::Tensor logits = at::randn({tokens, router.num_experts}).to(at::kBFloat16).requires_grad_();
      const at::Tensor exact = logits.detach().to(at::kDouble).requires_grad_();
      const Routing routing = block.moe.route(logits);
      ASSERT_EQ(routing.scores.scalar_type(), at::kFloat);
      const at::Tensor truth = exact_scores(exact, routing.experts, router);
      EXPECT_TRUE(at::allclose(routing.scores.to(at::kDouble), truth, 1e-6, 0));
      EXPECT_TRUE(routing.counts.equal(at::bincount(routing.experts.flatten(), {}, router.num_experts)));

      const at::Tensor seed = at::randn_like(routing.scores);
      const at::Tensor found = torch::autograd::grad({routing.scores}, {logits}, {seed})[0];
      const at::Tensor expected = torch::autograd::grad({truth}, {exact}, {seed.to(at::kDouble)})[0];
      EXPECT_EQ(found.scalar_type(), at::kBFloat16);
      // One rounding to bf16, in addition to fp32's error of differences that may cancel.
      EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1.0 / 256, 1e-5 * router.route_scale));
    }
  });
}

// DeepSeek V2, with softmax scores, prefers the group of the best expert; V3 the group with the highest sum of its two
// best.
TEST(RouterTest, DeepSeekV2AndV3RankGroupsDifferently) {
  const at::Tensor logits = at::tensor({3.0, -9.0, 2.0, 1.9}).view({1, 4}).to(at::kBFloat16);
  for (const bool softmax : {true, false}) {
    RouterBlock block({.num_experts = 4, .top_k = 1, .softmax = softmax, .num_groups = 2, .limited_groups = 1});
    EXPECT_EQ(block.moe.route(logits).experts.item<int64_t>(), softmax ? 0 : 2);
  }
}

// All kernels give the same experts, scores and counts to the bit, although coarse logits make many ties.
TEST(RouterTest, ChoosesTheSameAsLibTorch) {
  at::manual_seed(2);
  for (const RouterOptions& router : routers()) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(words(router, 50) + (biased ? ", bias" : ""));
      const at::Tensor logits = (at::randn({50, router.num_experts}) * 2).round().div(2).to(at::kBFloat16);
      const at::Tensor bias = (at::randn({router.num_experts}) * 4).round() / 16;
      std::optional<Routing> reference;
      kernels::testing::with_every_choice([&] {
        RouterBlock block(router);
        if (biased) block.buffers()[0].value = bias;
        const Routing routing = block.moe.route(logits);
        if (!reference) reference = routing;
        EXPECT_TRUE(routing.experts.equal(reference->experts));
        EXPECT_TRUE(routing.scores.equal(reference->scores));
        EXPECT_TRUE(routing.counts.equal(reference->counts));
      });
    }
  }
}

TEST(RouterTest, HandlesZeroTokens) {
  kernels::testing::with_every_choice([] {
    RouterBlock block({.num_experts = 8, .top_k = 2, .softmax = true, .route_norm = true});
    const at::Tensor logits = at::empty({0, 8}, at::kBFloat16).requires_grad_();
    const Routing routing = block.moe.route(logits);
    EXPECT_EQ(routing.scores.sizes(), (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(torch::autograd::grad({routing.scores.sum()}, {logits})[0].sizes(), logits.sizes());
  });
}

}  // namespace
}  // namespace titan::nn
