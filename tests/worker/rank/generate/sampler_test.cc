// Tests the choice of the next token: the tokens that temperature, top-k and top-p leave, and how often each is drawn.

#include "worker/rank/generate/sampler.h"

#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace titan::generate {
namespace {

at::Tensor row_of(const std::vector<double>& logits) { return at::tensor(logits, at::kDouble).unsqueeze(0); }

// Counts the tokens that evenly spaced draws select: each appears in proportion to its probability.
std::vector<int> counts(const at::Tensor& logits, const SamplingOptions& options, int draws) {
  std::vector<int> counted(static_cast<size_t>(logits.size(1)));
  for (int i = 0; i < draws; ++i) {
    const double draw = (i + 0.5) / draws;
    ++counted[static_cast<size_t>(sample(logits, options, {draw}).front())];
  }
  return counted;
}

TEST(SamplerTest, GreedyTakesTheFirstOfTheLikeliest) {
  EXPECT_EQ(sample(row_of({1, 5, 2, 5}), {.temperature = 0}, {0.9}), std::vector<int64_t>{1});
  EXPECT_EQ(sample(at::tensor({0.0, 1.0, 2.0, 0.0}, at::kFloat).view({2, 2}), {.temperature = 0}, {0, 0}),
            (std::vector<int64_t>{1, 0}));
}

TEST(SamplerTest, FrequenciesFollowTheSoftmax) {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({1, 9}, at::kDouble) * 2;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    const at::Tensor shares = at::softmax(logits / temperature, 1);
    const std::vector<int> counted = counts(logits, {.temperature = temperature}, 10'000);
    for (size_t token = 0; token < counted.size(); ++token) {
      EXPECT_NEAR(counted[token], shares[0][static_cast<int64_t>(token)].item<double>() * 10'000, 1.01) << token;
    }
  }
}

TEST(SamplerTest, TopKKeepsTheLikeliestTokens) {
  const std::vector<int> counted =
      counts(row_of({0, std::log(3.0), -9, std::log(2.0)}), {.temperature = 1, .top_k = 2}, 1000);
  EXPECT_EQ(counted, (std::vector<int>{0, 600, 0, 400}));
}

// The probabilities are 0.5, 0.3, 0.15 and 0.05; the token with which their sum reaches p is the last one kept.
TEST(SamplerTest, TopPKeepsTheSmallestSufficientSet) {
  const at::Tensor logits = row_of({std::log(0.05), std::log(0.5), std::log(0.15), std::log(0.3)});
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_p = 0.79}, 800), (std::vector<int>{0, 500, 0, 300}));
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_p = 0.81}, 950), (std::vector<int>{0, 500, 150, 300}));
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_p = 0.01}, 10), (std::vector<int>{0, 10, 0, 0}));
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6}, 10), (std::vector<int>{0, 10, 0, 0}))
      << "top-p applies after top-k";
}

TEST(SamplerTest, HugeLogitsDoNotOverflow) {
  EXPECT_EQ(sample(row_of({1e300, -1e300, 1e299}), {.temperature = 1e-3}, {0.99}), std::vector<int64_t>{0});
}

// With any options a row with a NaN or infinite logit yields no token, and other rows do not change.
TEST(SamplerTest, NonFiniteLogitsGiveNoToken) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      const at::Tensor logits =
          at::tensor({0.0, 3.0, 1.0, 0.0, bad, 1.0, 2.0, 0.0, 0.0}, at::kDouble).view({3, 3}).to(type);
      for (const SamplingOptions& options :
           {SamplingOptions{.temperature = 0}, SamplingOptions{.temperature = 1e-3},
            SamplingOptions{.temperature = 1e-3, .top_k = 1}, SamplingOptions{.temperature = 1e-3, .top_p = 0.5}}) {
        EXPECT_EQ(sample(logits, options, {0.5, 0.5, 0.5}), (std::vector<int64_t>{1, kNoToken, 0})) << bad;
      }
    }
  }
}

TEST(SamplerTest, DrawsDependOnSeedPromptAndTokenAlone) {
  std::set<double> all;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (int64_t prompt = 0; prompt < 5; ++prompt) {
      for (int64_t token = 0; token < 20; ++token) {
        const double number = draw(seed, prompt, token);
        EXPECT_GE(number, 0);
        EXPECT_LT(number, 1);
        EXPECT_EQ(number, draw(seed, prompt, token));
        all.insert(number);
      }
    }
  }
  EXPECT_EQ(all.size(), 500u);
  double sum = 0;
  for (const double number : all) sum += number;
  EXPECT_NEAR(sum / 500, 0.5, 0.05);
}

TEST(SamplerTest, RefusesInvalidOptions) {
  for (const SamplingOptions& bad :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = std::nan("")},
        SamplingOptions{.temperature = INFINITY}, SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0},
        SamplingOptions{.top_p = 1.5}, SamplingOptions{.top_p = std::nan("")}}) {
    EXPECT_EQ(check(bad).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(check({.temperature = 0, .top_k = 50, .top_p = 0.9}).ok());
}

}  // namespace
}  // namespace titan::generate
