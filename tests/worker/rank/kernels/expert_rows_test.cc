#include "worker/rank/kernels/cpu/expert_rows.h"

#include <numeric>

#include "tests/worker/rank/kernels/simulated_kernels.h"

namespace titan::kernels::testing {
namespace {

struct RowsCase {
  int64_t tokens, choices, width;
  Dtype type;
  bool weighted;
};

std::vector<RowsCase> rows_cases() {
  std::vector<RowsCase> cases;
  for (const Dtype type : kBothTypes) {
    for (const bool weighted : {false, true}) {
      cases.push_back({0, 2, 8, type, weighted});
      cases.push_back({1, 1, 1, type, weighted});
      cases.push_back({6, 3, 13, type, weighted});
      cases.push_back({5, 8, 32, type, weighted});
      cases.push_back({9, 2, 300, type, weighted});
    }
  }
  return cases;
}

constexpr int64_t kExperts = 5;

struct Rows {
  explicit Rows(const RowsCase& c, uint64_t seed = 1)
      : c(c),
        random(seed),
        count(c.tokens * c.choices),
        x(c.type, random.normals(count * c.width), random.edge()),
        dx(c.type, count * c.width, random.edge()),
        y(c.type, c.tokens * c.width, random.edge()),
        dy(c.type, random.normals(c.tokens * c.width), random.edge()),
        weights(count, random.edge()),
        dweights(count, random.edge()),
        chosen(count),
        rows(count, random.edge()),
        row_tokens(count, random.edge()),
        places(count, random.edge()) {
    for (int64_t i = 0; i < count; ++i) {
      weights[i] = static_cast<float>(random.normal());
      chosen[i] = random.pick(0, kExperts - 1);
    }
  }
  bool order() const {
    return order_rows({.tokens = c.tokens,
                       .choices = c.choices,
                       .experts = kExperts,
                       .chosen = chosen.data(),
                       .rows = rows.data(),
                       .row_tokens = row_tokens.data(),
                       .places = places.data()});
  }

  RowsCase c;
  Random random;
  int64_t count;
  Numbers x, dx, y, dy;
  Buffer<float> weights, dweights;
  Buffer<int64_t> chosen, rows, row_tokens, places;
};

TEST(ExpertRowsTest, SortsRowsByExpertAndKeepsTheirOrder) {
  for (const RowsCase& c : rows_cases()) {
    const Rows rows(c);
    ASSERT_TRUE(rows.order());
    std::vector<int64_t> truth(rows.count);
    std::iota(truth.begin(), truth.end(), 0);
    std::stable_sort(truth.begin(), truth.end(), [&](int64_t a, int64_t b) { return rows.chosen[a] < rows.chosen[b]; });
    EXPECT_EQ(rows.rows.copy(), truth);
    for (int64_t place = 0; place < rows.count; ++place) {
      EXPECT_EQ(rows.places[truth[place]], place);
      EXPECT_EQ(rows.row_tokens[place], truth[place] / c.choices);
    }
  }
}

TEST(ExpertRowsTest, DeclinesAnExpertOutOfRange) {
  for (const int64_t expert : {kExperts, int64_t{-1}}) {
    const Rows rows({4, 2, 1, Dtype::kF32, false});
    rows.chosen[3] = expert;
    const std::vector<int64_t> before = rows.places.copy();
    EXPECT_FALSE(rows.order());
    EXPECT_EQ(rows.places.copy(), before);
  }
}

TEST(ExpertRowsTest, GathersRowsBitByBit) {
  for (const RowsCase& c : rows_cases()) {
    at_every_level([&](Level level, int threads) {
      const Rows rows(c);
      ASSERT_TRUE(rows.order());
      if (c.tokens > 1) rows.dy.set(1, kNan);
      ASSERT_TRUE(gather_rows(level, {.count = rows.count,
                                      .width = c.width,
                                      .type = c.type,
                                      .x = rows.dy.data(),
                                      .from = rows.row_tokens.data(),
                                      .y = rows.dx.data(),
                                      .threads = threads}));
      for (int64_t place = 0; place < rows.count; ++place) {
        EXPECT_EQ(std::memcmp(rows.dx.at(place * c.width), rows.dy.at(rows.row_tokens[place] * c.width),
                              c.width * size_of(c.type)),
                  0);
      }
    });
  }
}

TEST(ExpertRowsTest, SumsTheChoicesOfEachToken) {
  for (const RowsCase& c : rows_cases()) {
    for (const bool sorted : {true, false}) {
      for_each_computer([&](const Computer& by) {
        const Rows rows(c);
        ASSERT_TRUE(rows.order());
        ASSERT_TRUE(by.run(sum_rows, SumRows{.tokens = c.tokens,
                                             .choices = c.choices,
                                             .width = c.width,
                                             .type = c.type,
                                             .x = rows.x.data(),
                                             .places = sorted ? rows.places.data() : nullptr,
                                             .weights = c.weighted ? rows.weights.data() : nullptr,
                                             .y = rows.y.data()}));
        for (int64_t token = 0; token < c.tokens; ++token) {
          for (int64_t i = 0; i < c.width; ++i) {
            double truth = 0, magnitude = 0;
            for (int64_t row = token * c.choices; row < (token + 1) * c.choices; ++row) {
              const double term =
                  rows.x.get((sorted ? rows.places[row] : row) * c.width + i) * (c.weighted ? rows.weights[row] : 1);
              truth += term;
              magnitude += std::abs(term);
            }
            ASSERT_TRUE(is_close(rows.y.get(token * c.width + i), truth, rounding(c.type),
                                 2e-7 * static_cast<double>(c.choices) * magnitude));
          }
        }
      });
    }
  }
}

TEST(ExpertRowsTest, PropagatesGradientsToRowsAndWeights) {
  for (const RowsCase& c : rows_cases()) {
    if (!c.weighted) continue;
    for_each_computer([&](const Computer& by) {
      const Rows rows(c);
      ASSERT_TRUE(rows.order());
      SumRowsBackward args = {.tokens = c.tokens,
                              .choices = c.choices,
                              .width = c.width,
                              .type = c.type,
                              .x = rows.x.data(),
                              .places = rows.places.data(),
                              .weights = rows.weights.data(),
                              .dy = rows.dy.data(),
                              .dx = rows.dx.data(),
                              .dweights = rows.dweights.data()};
      ASSERT_TRUE(by.run(sum_rows_backward, args));
      for (int64_t row = 0; row < rows.count; ++row) {
        double dweight = 0, magnitude = 0;
        for (int64_t i = 0; i < c.width; ++i) {
          const int64_t at = rows.places[row] * c.width + i;
          const double dy = rows.dy.get(row / c.choices * c.width + i);
          dweight += dy * rows.x.get(at);
          magnitude += std::abs(dy * rows.x.get(at));
          ASSERT_TRUE(is_close(rows.dx.get(at), dy * rows.weights[row], rounding(c.type), 1e-35));
        }
        ASSERT_NEAR(rows.dweights[row], dweight, 1e-6 * magnitude);
      }
      const auto dx = rows.dx.bits();
      const std::vector<float> dweights = rows.dweights.copy();
      args.dx = rows.x.data();  // dx overwrites the rows themselves.
      ASSERT_TRUE(by.run(sum_rows_backward, args));
      EXPECT_EQ(rows.x.bits(), dx);
      EXPECT_EQ(rows.dweights.copy(), dweights);
      args.weights = nullptr;
      EXPECT_FALSE(by.run(sum_rows_backward, args));
      const Rows again(c);  // The same numbers, since the rows above were overwritten.
      const auto untouched = again.x.bits();
      args.x = again.x.data();
      args.dx = nullptr;
      std::fill_n(rows.dweights.data(), rows.count, 0.0F);
      ASSERT_TRUE(by.run(sum_rows_backward, args));
      EXPECT_EQ(rows.dweights.copy(), dweights);
      EXPECT_EQ(again.x.bits(), untouched);
    });
  }
}

}  // namespace
}  // namespace titan::kernels::testing
