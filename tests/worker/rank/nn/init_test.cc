#include "worker/rank/nn/init.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "worker/rank/nn/random.h"

namespace titan::nn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Parameter parameter(std::string fqn, int64_t size, Init init) { return {std::move(fqn), {size}, init, {}}; }

at::Tensor draw(const Parameter& p, uint64_t seed, int64_t begin, int64_t end, at::ScalarType type = at::kFloat) {
  at::Tensor out = at::full({end - begin}, 77, type);
  fill(p, seed, begin, end, out);
  return out;
}

// Returns the largest distance between the empirical and the exact distribution function (Kolmogorov-Smirnov), times
// sqrt(n): about 0.9 on average, above 2 with probability 7e-4.
double distance_from_normal(const at::Tensor& values, double std, double lower, double upper) {
  const at::Tensor z = std::get<0>(values.to(at::kDouble).sort()) / std;
  const double below = 0.5 * std::erfc(-lower / std / std::sqrt(2)),
               above = 0.5 * std::erfc(upper / std / std::sqrt(2));
  const at::Tensor exact = (at::erfc(-z / std::sqrt(2)) * 0.5 - below) / (1 - below - above);
  const double n = static_cast<double>(z.numel());
  const at::Tensor empirical = (at::arange(z.numel(), at::kDouble) + 0.5) / n;
  return (exact - empirical).abs().max().item<double>() * std::sqrt(n);
}

// The generator is the published one: it gives its authors' known answer for all-zero input.
TEST(RandomTest, PhiloxMatchesKnownAnswer) {
  PhiloxWords word;
  philox(0, 0, word);
  EXPECT_EQ(word[0][0], 0x6627e8d5u);
  EXPECT_EQ(word[1][0], 0xe169c58du);
  EXPECT_EQ(word[2][0], 0xbc57ac4cu);
  EXPECT_EQ(word[3][0], 0x9b00dbd8u);
  PhiloxWords later;
  philox(0, 5, later);
  EXPECT_EQ(later[2][3], word[2][8]);
}

// However a mesh splits a parameter, each part equals that part of the whole.
TEST(FillTest, BoxesEqualTheirPartOfTheWhole) {
  const Init init{Init::Kind::kTruncatedNormal, 0.02, -2, 2};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{37}, {7, 130}, {3, 5, 67}, {}}) {
    const Parameter p{"layers.1.moe.experts.w1", shape, init, {}};
    at::Tensor whole = at::empty(shape);
    fill(p, 5, 0, whole.numel(), whole.view({-1}));
    for (int repeat = 0; repeat < 20; ++repeat) {
      at::Tensor part = whole;
      std::vector<int64_t> offset;
      for (size_t d = 0; d < shape.size(); ++d) {
        const bool is_cut = at::randint(2, {1}).item<int64_t>() == 1;
        const int64_t first = is_cut ? at::randint(shape[d], {1}).item<int64_t>() : 0;
        const int64_t count = is_cut ? at::randint(shape[d] - first + 1, {1}).item<int64_t>() : shape[d];
        part = part.narrow(static_cast<int64_t>(d), first, count);
        offset.push_back(first);
      }
      at::Tensor drawn = at::full(part.sizes(), 77.0F);
      fill_box(p, 5, offset, drawn);
      EXPECT_TRUE(drawn.equal(part)) << part.sizes() << " of " << at::IntArrayRef(shape);
    }
  }
}

// Every mesh must start from the same weights: the bits depend neither on the slice nor on the threads.
TEST(FillTest, SlicesJoinToTheWhole) {
  const Parameter p = parameter("layers.3.attention.wq.weight", 10007, {Init::Kind::kTruncatedNormal, 0.02, -2, 2});
  const at::Tensor whole = draw(p, 42, 0, 10007);
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 1, 10007}, {0, 63, 64, 65, 128, 5000, 10006, 10007}, {0, 777, 777, 9999, 10007}}) {
    std::vector<at::Tensor> parts;
    for (size_t i = 1; i < cuts.size(); ++i) parts.push_back(draw(p, 42, cuts[i - 1], cuts[i]));
    EXPECT_TRUE(at::cat(parts).equal(whole));
  }
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(draw(p, 42, 0, 10007).equal(whole));
  at::set_num_threads(threads);
}

TEST(FillTest, NormalHasItsDistribution) {
  const int64_t n = 1 << 20;
  const at::Tensor x = draw(parameter("tok_embeddings.weight", n, {Init::Kind::kNormal, 1.0}), 1, 0, n);
  EXPECT_LT(distance_from_normal(x, 1, -kInfinity, kInfinity), 2.0);
  EXPECT_NEAR(x.mean().item<double>(), 0, 4e-3);
  EXPECT_NEAR(x.std().item<double>(), 1, 4e-3);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, 0.04);
  EXPECT_GT(x.abs().max().item<double>(), 4.2);  // Tails are not cut off: on average 28 of 2^20 are beyond 4.2.
}

// Tests the head's distribution, of std dim^-0.5 and truncated at 3 std, and that of the blocks, whose absolute bounds
// of +-2 cut nothing off.
TEST(FillTest, TruncatedNormalHasItsDistributionAndBounds) {
  const int64_t n = 1 << 20;
  const double std = 1.0 / 16;
  const at::Tensor head =
      draw(parameter("output.weight", n, {Init::Kind::kTruncatedNormal, std, -3 * std, 3 * std}), 1, 0, n);
  EXPECT_LT(distance_from_normal(head, std, -3 * std, 3 * std), 2.0);
  EXPECT_LE(head.abs().max().item<double>(), 3 * std);
  EXPECT_GT(head.abs().max().item<double>(), 2.99 * std);
  EXPECT_NEAR(head.std().item<double>(), std * std::sqrt(1 - 6 * 0.00443184841 / 0.9973002), 2e-4);
  const at::Tensor block = draw(parameter("w", n, {Init::Kind::kTruncatedNormal, 0.02, -2, 2}), 1, 0, n);
  EXPECT_LT(distance_from_normal(block, 0.02, -2, 2), 2.0);
  const at::Tensor skewed = draw(parameter("w", n, {Init::Kind::kTruncatedNormal, 1.0, 0.5, 4}), 1, 0, n);
  EXPECT_LT(distance_from_normal(skewed, 1, 0.5, 4), 2.0);
  EXPECT_GE(skewed.min().item<double>(), 0.5);
}

// Numbers are drawn evenly between the bounds, and slices join to the whole.
TEST(FillTest, UniformHasItsDistributionAndBounds) {
  const double bound = 0.125;
  const Parameter p = parameter("layers.0.attention.wq.lora_A.weight", 100'003,
                                {.kind = Init::Kind::kUniform, .lower = -bound, .upper = bound});
  const at::Tensor values = draw(p, 11, 0, 100'003);
  EXPECT_LT(values.abs().max().item<double>(), bound);
  const at::Tensor shares = std::get<0>((values.to(at::kDouble) / (2 * bound) + 0.5).sort());
  const at::Tensor exact = (at::arange(100'003, at::kDouble) + 0.5) / 100'003;
  EXPECT_LT((shares - exact).abs().max().item<double>() * std::sqrt(100'003.0), 2);
  for (const int64_t cut : {1, 63, 64, 65, 5000, 99'999}) {
    EXPECT_TRUE(at::cat({draw(p, 11, 0, cut), draw(p, 11, cut, 100'003)}).equal(values)) << cut;
  }
}

TEST(FillTest, SeedsAndNamesGiveIndependentStreams) {
  const int64_t n = 1 << 18;
  const Init init{Init::Kind::kNormal, 1.0};
  const at::Tensor a = draw(parameter("layers.0.attention.wq.weight", n, init), 0, 0, n);
  const at::Tensor b = draw(parameter("layers.0.attention.wk.weight", n, init), 0, 0, n);
  const at::Tensor c = draw(parameter("layers.0.attention.wq.weight", n, init), 1, 0, n);
  const double bound = 4.5 / std::sqrt(static_cast<double>(n));
  EXPECT_LT(std::abs((a * b).mean().item<double>()), bound);
  EXPECT_LT(std::abs((a * c).mean().item<double>()), bound);
  EXPECT_LT(std::abs((a.slice(0, 0, n - 1) * a.slice(0, 1, n)).mean().item<double>()), bound);
}

// Other types hold the same fp32 numbers, rounded.
TEST(FillTest, EveryTypeHoldsTheSameNumbers) {
  const Parameter p = parameter("w", 200, {Init::Kind::kNormal, 1.0});
  const at::Tensor x = draw(p, 9, 3, 200);
  EXPECT_TRUE(draw(p, 9, 3, 200, at::kDouble).equal(x.to(at::kDouble)));
  EXPECT_TRUE(draw(p, 9, 3, 200, at::kBFloat16).equal(x.to(at::kBFloat16)));
  EXPECT_TRUE(draw(parameter("norm.weight", 9, {Init::Kind::kOnes}), 0, 2, 7).equal(at::ones({5})));
}

TEST(FillTest, RefusesARangeOutsideOfTheParameter) {
  at::Tensor out = at::empty({5});
  EXPECT_THROW(fill(parameter("w", 4, {Init::Kind::kOnes}), 0, 0, 5, out), c10::Error);
  EXPECT_THROW(fill(parameter("w", 9, {Init::Kind::kOnes}), 0, 0, 4, out), c10::Error);
}

}  // namespace
}  // namespace titan::nn
