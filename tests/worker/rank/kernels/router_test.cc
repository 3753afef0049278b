#include "worker/rank/kernels/cpu/router.h"

#include <numeric>
#include <set>

#include "tests/worker/rank/kernels/harness.h"

namespace titan::kernels::testing {
namespace {

struct RouterCase {
  int64_t tokens, experts, top_k;
  Dtype type;
  bool softmax, normalized, biased;
  int64_t groups = 0, limited_groups = 0;
};

std::vector<RouterCase> router_cases() {
  std::vector<RouterCase> cases;
  for (const Dtype type : kBothTypes) {
    for (const bool softmax : {false, true}) {
      cases.push_back({0, 8, 2, type, softmax, true, false});
      cases.push_back({1, 1, 1, type, softmax, false, false});
      cases.push_back({7, 8, 8, type, softmax, true, true});
      cases.push_back({20, 33, 3, type, softmax, false, true});
      cases.push_back({9, 256, 8, type, softmax, true, true, 8, 4});
      cases.push_back({9, 12, 2, type, softmax, true, false, 6, 1});
    }
  }
  return cases;
}

struct Router {
  explicit Router(const RouterCase& c, uint64_t seed = 1)
      : c(c),
        random(seed),
        stride(c.experts + random.pick(0, 3)),
        logits(c.type, random.normals(c.tokens * stride), random.edge()),
        dlogits(c.type, c.tokens * stride, random.edge()),
        bias(c.experts),
        scores(c.tokens * c.top_k, random.edge()),
        dscores(c.tokens * c.top_k, random.edge()),
        chosen(c.tokens * c.top_k, random.edge()),
        counts(c.experts, random.edge()) {
    for (int64_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(0.1 * random.normal());
    for (int64_t i = 0; i < dscores.size(); ++i) dscores[i] = static_cast<float>(random.normal());
  }

  RouterForward forward(int threads) const {
    return {.tokens = c.tokens,
            .experts = c.experts,
            .top_k = c.top_k,
            .type = c.type,
            .logits = logits.data(),
            .stride = stride,
            .bias = c.biased ? bias.data() : nullptr,
            .softmax = c.softmax,
            .normalized = c.normalized,
            .scale = kScale,
            .groups = c.groups,
            .limited_groups = c.limited_groups,
            .chosen = chosen.data(),
            .scores = scores.data(),
            .counts = counts.data(),
            .threads = threads};
  }
  RouterBackward backward(int threads) const {
    return {.tokens = c.tokens,
            .experts = c.experts,
            .top_k = c.top_k,
            .type = c.type,
            .logits = logits.data(),
            .stride = stride,
            .softmax = c.softmax,
            .normalized = c.normalized,
            .scale = kScale,
            .chosen = chosen.data(),
            .dscores = dscores.data(),
            .dlogits = dlogits.data(),
            .dlogits_stride = stride,
            .threads = threads};
  }

  std::vector<double> true_scores(int64_t token) const {
    std::vector<double> truth(c.experts);
    double sum = 0;
    for (int64_t e = 0; e < c.experts; ++e) {
      const double logit = logits.get(token * stride + e);
      truth[e] = c.softmax ? std::exp(logit) : 1 / (1 + std::exp(-logit));
      sum += truth[e];
    }
    for (double& score : truth) score /= c.softmax ? sum : 1;
    return truth;
  }

  static constexpr float kScale = 2.5F;
  RouterCase c;
  Random random;
  int64_t stride;
  Numbers logits, dlogits;
  Buffer<float> bias, scores, dscores;
  Buffer<int64_t> chosen, counts;
};

// Returns the experts of the groups that a token may use, by the fp64 truth.
std::set<int64_t> allowed(const RouterCase& c, const std::vector<double>& preference) {
  std::set<int64_t> experts;
  std::vector<std::pair<double, int64_t>> groups;
  const int64_t num_groups = std::max<int64_t>(c.groups, 1), size = c.experts / num_groups;
  for (int64_t group = 0; group < num_groups; ++group) {
    std::vector<double> members(preference.begin() + group * size, preference.begin() + (group + 1) * size);
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(-members[0] - (size > 1 ? members[1] : 0), group);
  }
  std::sort(groups.begin(), groups.end());
  for (int64_t rank = 0; rank < (c.groups == 0 ? 1 : c.limited_groups); ++rank) {
    for (int64_t i = 0; i < size; ++i) experts.insert(groups[rank].second * size + i);
  }
  return experts;
}

// Checks that no expert that was left out is truly better than the worst chosen one, except in the last bits.
void check_choice(const Router& router, int64_t token) {
  const RouterCase& c = router.c;
  std::vector<double> preference = router.true_scores(token);
  for (int64_t e = 0; c.biased && e < c.experts; ++e) preference[e] += router.bias[e];
  const std::set<int64_t> open = allowed(c, preference);
  const int64_t* chosen = router.chosen.data() + token * c.top_k;
  const std::set<int64_t> distinct(chosen, chosen + c.top_k);
  ASSERT_EQ(static_cast<int64_t>(distinct.size()), c.top_k);
  for (const int64_t expert : distinct) ASSERT_TRUE(open.contains(expert));
  const double worst = preference[chosen[c.top_k - 1]];
  for (int64_t rank = 1; rank < c.top_k; ++rank) {
    ASSERT_GE(preference[chosen[rank - 1]], preference[chosen[rank]] - 1e-6);
  }
  for (const int64_t expert : open) {
    if (!distinct.contains(expert)) {
      ASSERT_LE(preference[expert], worst + 1e-6);
    }
  }
}

void check_scores(const Router& router, int64_t token) {
  const std::vector<double> truth = router.true_scores(token);
  double sum = 0;
  for (int64_t rank = 0; rank < router.c.top_k; ++rank) sum += truth[router.chosen[token * router.c.top_k + rank]];
  for (int64_t rank = 0; rank < router.c.top_k; ++rank) {
    const double score =
        truth[router.chosen[token * router.c.top_k + rank]] / (router.c.normalized ? sum : 1) * Router::kScale;
    ASSERT_NEAR(router.scores[token * router.c.top_k + rank], score, 1e-6 * score);
  }
}

void check_gradients(const Router& router, int64_t token) {
  const RouterCase& c = router.c;
  const std::vector<double> truth = router.true_scores(token);
  const int64_t* chosen = router.chosen.data() + token * c.top_k;
  const float* dscores = router.dscores.data() + token * c.top_k;
  double sum = 0, along = 0, largest = 0;
  for (int64_t rank = 0; rank < c.top_k; ++rank) {
    sum += truth[chosen[rank]];
    along += truth[chosen[rank]] * dscores[rank];
    largest = std::max(largest, static_cast<double>(std::abs(dscores[rank])));
  }
  std::vector<double> plain(c.experts),
      gradient(c.experts);  // Gradients of the scores before normalization, and of the logits.
  for (int64_t rank = 0; rank < c.top_k; ++rank) {
    plain[chosen[rank]] = Router::kScale * (c.normalized ? (dscores[rank] - along / sum) / sum : dscores[rank]);
  }
  const double mean = std::inner_product(plain.begin(), plain.end(), truth.begin(), 0.0);
  const double slack = 2e-6 * Router::kScale * largest / (c.normalized ? std::min(sum, 1.0) : 1);
  for (int64_t e = 0; e < c.experts; ++e) {
    gradient[e] = truth[e] * (c.softmax ? plain[e] - mean : plain[e] * (1 - truth[e]));
    const double found = router.dlogits.get(token * router.stride + e);
    ASSERT_TRUE(is_close(found, gradient[e], rounding(c.type), slack)) << found << ", " << gradient[e];
  }
}

TEST(RouterTest, ChoosesScoresAndPropagatesGradients) {
  for (const RouterCase& c : router_cases()) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, " << c.top_k << " of " << c.experts << ", "
                                      << name(c.type) << ", softmax " << c.softmax << ", groups " << c.groups);
    at_every_level([&](Level level, int threads) {
      const Router router(c);
      ASSERT_TRUE(router_forward(level, router.forward(threads)));
      ASSERT_TRUE(router_backward(level, router.backward(threads)));
      std::vector<int64_t> counts(c.experts);
      for (int64_t token = 0; token < c.tokens; ++token) {
        check_choice(router, token);
        check_scores(router, token);
        check_gradients(router, token);
        for (int64_t rank = 0; rank < c.top_k; ++rank) ++counts[router.chosen[token * c.top_k + rank]];
      }
      EXPECT_EQ(router.counts.copy(), counts);
    });
  }
}

// Whatever the logits are, a token's experts are valid and distinct.
TEST(RouterTest, ChoosesDistinctExpertsFromAnyLogits) {
  at_every_level([](Level level, int threads) {
    for (const double value : {kNan, kInfinity, -kInfinity, 0.0, 1e30}) {
      for (const bool softmax : {false, true}) {
        const Router router({5, 20, 4, Dtype::kBf16, softmax, true, true, 5, 2});
        for (int64_t i = 0; i < router.logits.size(); i += 1 + i / router.stride) router.logits.set(i, value);
        ASSERT_TRUE(router_forward(level, router.forward(threads)));
        for (int64_t token = 0; token < 5; ++token) {
          std::set<int64_t> distinct;
          for (int64_t rank = 0; rank < 4; ++rank) distinct.insert(router.chosen[token * 4 + rank]);
          EXPECT_EQ(distinct.size(), 4U);
          EXPECT_TRUE(*distinct.begin() >= 0 && *distinct.rbegin() < 20);
        }
      }
    }
  });
}

TEST(RouterTest, TiesGoToTheFirstExperts) {
  for (const Level level : levels_here()) {
    const Router router({1, 40, 3, Dtype::kF32, true, false, false});
    for (int64_t i = 0; i < router.logits.size(); ++i) router.logits.set(i, 1);
    ASSERT_TRUE(router_forward(level, router.forward(1)));
    EXPECT_EQ(router.chosen.copy(), (std::vector<int64_t>{0, 1, 2}));
  }
}

TEST(RouterTest, DeclinesUnsupportedSizes) {
  const auto declined = [](Level level, int64_t experts, int64_t top_k, int64_t groups, int64_t limited) {
    return !router_forward(
        level, {.tokens = 1, .experts = experts, .top_k = top_k, .groups = groups, .limited_groups = limited});
  };
  for (const Level level : levels_here()) {
    EXPECT_TRUE(declined(level, kMaxExperts + 1, 1, 0, 0));
    EXPECT_TRUE(declined(level, 100, kMaxChoices + 1, 0, 0));
    EXPECT_TRUE(declined(level, 4, 5, 0, 0));
    EXPECT_TRUE(declined(level, 10, 2, 3, 1));  // Groups of unequal size.
    EXPECT_TRUE(declined(level, 8, 2, 8, 4));   // Groups of one.
    EXPECT_TRUE(declined(level, 8, 3, 4, 1));   // Fewer open experts than choices.
  }
}

}  // namespace
}  // namespace titan::kernels::testing
