#include "worker/rank/nn/moe_rows.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/bf16_oracle.h"

// Compares how rows move to their experts and back, with and without Titan's own kernels, with fp64 of the same
// numbers.
namespace titan::nn {
namespace {

using testing::expect_close;
using testing::rounded;
using testing::Tensors;

// Draws distinct experts for each token, in random order: [tokens, choices].
at::Tensor random_choice(int64_t tokens, int64_t choices, int64_t experts) {
  return at::rand({tokens, experts}).argsort(/*dim=*/-1, /*descending=*/false).narrow(1, 0, choices).contiguous();
}

TEST(ExpertOrderTest, IsStable) {
  kernels::testing::with_every_choice([] {
    const at::Tensor experts = at::tensor({2, 0, 1, 2, 0, 2}, at::kLong).view({3, 2});
    const ExpertOrder order = order_by_expert(experts, 3);
    EXPECT_TRUE(order.rows.equal(at::tensor({1, 4, 2, 0, 3, 5}, at::kLong)));
    EXPECT_TRUE(order.tokens.equal(at::tensor({0, 2, 1, 0, 1, 2}, at::kLong)));
    EXPECT_TRUE(order.rows.index_select(0, order.places.view({-1})).equal(at::arange(6)));
  });
}

TEST(ExpertOrderTest, SortsAnyChoice) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(1);
    titan::testing::Draw pick(1);
    for (int i = 0; i < 20; ++i) {
      const int64_t tokens = pick({0, 1, 9, 300}), choices = pick({1, 2, 5}), experts = pick({5, 8, 64});
      const at::Tensor chosen = random_choice(tokens, choices, experts);
      const ExpertOrder order = order_by_expert(chosen.t().contiguous().t(), experts);  // Choices may have any layout.
      const at::Tensor sorted = std::get<1>(chosen.flatten().sort(/*stable=*/true, 0, false));
      EXPECT_TRUE(order.rows.equal(sorted));
      EXPECT_TRUE(order.tokens.equal(at::div(sorted, choices, "floor")));
      EXPECT_TRUE(order.places.equal(sorted.argsort().view({tokens, choices})));
    }
  });
}

struct Traffic {
  int64_t tokens, choices, experts, width;
};

void for_random_traffic(unsigned seed, const std::function<void(const Traffic&, const std::string&)>& check) {
  kernels::testing::with_every_row_kernel([&] {
    at::manual_seed(seed);
    titan::testing::Draw pick(seed);
    for (int i = 0; i < 20; ++i) {
      const Traffic of{pick({0, 1, 7, 40}), pick({1, 2, 6}), pick({6, 9, 32}), pick({1, 13, 64, 257})};
      check(of, std::to_string(of.tokens) + " tokens, " + std::to_string(of.choices) + " choices, width " +
                    std::to_string(of.width));
    }
  });
}

TEST(ExpertRowsTest, AreSpread) {
  for_random_traffic(2, [](const Traffic& of, const std::string& what) {
    const ExpertOrder order = order_by_expert(random_choice(of.tokens, of.choices, of.experts), of.experts);
    const auto sorted = [&](const at::Tensor& rows) { return rows.index_select(0, order.tokens); };
    const at::Tensor x = rounded({of.tokens, of.width}), scores = at::rand({of.tokens, of.choices});
    const at::Tensor grad = rounded({of.tokens * of.choices, of.width});
    expect_close(
        {x}, grad, [&](const Tensors& t) { return spread(t[0], {}, order); },
        [&](const Tensors& t) { return sorted(t[0]); }, 1, what);
    // LibTorch's operations round the gradient of each choice before they add them.
    expect_close(
        {x, scores}, grad, [&](const Tensors& t) { return spread(t[0], t[1], order); },
        [&](const Tensors& t) { return sorted(t[0]) * t[1].flatten().index_select(0, order.rows).unsqueeze(1); }, 2,
        what + ", weighted");
  });
}

TEST(ExpertRowsTest, AreCombined) {
  for_random_traffic(3, [](const Traffic& of, const std::string& what) {
    const ExpertOrder order = order_by_expert(random_choice(of.tokens, of.choices, of.experts), of.experts);
    const at::Tensor rows = rounded({of.tokens * of.choices, of.width});
    const at::Tensor scores = at::rand({of.tokens, of.choices}), grad = rounded({of.tokens, of.width});
    const auto by_token = [&](const at::Tensor& t) {
      return t.index_select(0, order.places.flatten()).view({of.tokens, of.choices, of.width});
    };
    expect_close(
        {rows}, grad, [&](const Tensors& t) { return combine(t[0], {}, order); },
        [&](const Tensors& t) { return by_token(t[0]).sum(1); }, 1, what);
    expect_close(
        {rows, scores}, grad, [&](const Tensors& t) { return combine(t[0], t[1], order); },
        [&](const Tensors& t) { return (by_token(t[0]) * t[1].unsqueeze(2)).sum(1); }, 1, what + ", weighted");
  });
}

// More numbers than LibTorch's operations widen at once give the same results as in one piece.
TEST(ExpertRowsTest, AreCombinedInPieces) {
  at::manual_seed(5);
  constexpr int64_t kTokens = 8220, kChoices = 2, kWidth = 4096, kAtOnce = int64_t{1} << 26;
  static_assert(kTokens * kChoices * kWidth > kAtOnce);
  const auto combined = [](const at::Tensor& rows, const at::Tensor& scores, const at::Tensor& grad) {
    const at::Tensor numbers = at::arange(rows.size(0));
    const ExpertOrder order{numbers, numbers.div(kChoices, "floor"), numbers.view({-1, kChoices})};
    const Tensors leaves{rows.detach().requires_grad_(), scores.detach().requires_grad_()};
    Tensors results{combine(leaves[0], leaves[1], order)};
    for (const at::Tensor& one : torch::autograd::grad({results[0]}, leaves, {grad})) results.push_back(one);
    return results;
  };
  const at::Tensor rows = at::randn({64, kWidth}).to(at::kBFloat16).repeat({kTokens * kChoices / 64 + 1, 1});
  const at::Tensor all = rows.narrow(0, 0, kTokens * kChoices), scores = at::rand({kTokens, kChoices});
  const at::Tensor grad = at::randn({1, kWidth}).to(at::kBFloat16).expand({kTokens, kWidth});
  const Tensors whole = combined(all, scores, grad);
  for (const int64_t first : {int64_t{0}, kAtOnce / (kChoices * kWidth) - 10, kTokens - 20}) {
    const Tensors part = combined(all.narrow(0, first * kChoices, 20 * kChoices), scores.narrow(0, first, 20),
                                  grad.narrow(0, first, 20));
    EXPECT_TRUE(whole[0].narrow(0, first, 20).equal(part[0])) << first;
    EXPECT_TRUE(whole[1].narrow(0, first * kChoices, 20 * kChoices).equal(part[1])) << first;
    EXPECT_TRUE(whole[2].narrow(0, first, 20).equal(part[2])) << first;
  }
}

TEST(ExpertRowsTest, ArePermutedBitForBit) {
  for_random_traffic(4, [](const Traffic& of, const std::string& what) {
    const at::Tensor order = at::randperm(of.tokens, at::kLong), inverse = order.argsort();
    const at::Tensor wide = rounded({of.tokens, of.width + 3}).to(at::kBFloat16);
    const at::Tensor grad = rounded({of.tokens, of.width}).to(at::kBFloat16);
    const at::Tensor x = wide.narrow(1, 2, of.width).requires_grad_();  // Rows with a stride.
    const at::Tensor y = permute_rows(x, order, inverse);
    EXPECT_TRUE(y.equal(x.index_select(0, order))) << what;
    EXPECT_TRUE(torch::autograd::grad({y}, {x}, {grad})[0].equal(grad.index_select(0, inverse))) << what;
  });
}

}  // namespace
}  // namespace titan::nn
