#include "worker/rank/data/samples/row_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

namespace titan::data {
namespace {

std::vector<int64_t> ascending(int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// Costs of which a few are many times the others, as those of images of any size are.
std::vector<int64_t> skewed_costs(std::mt19937& random, int64_t count) {
  std::lognormal_distribution<double> draw(4, 1.2);
  std::vector<int64_t> costs;
  for (int64_t i = 0; i < count; ++i) costs.push_back(std::llround(std::min(draw(random), 1024.0)));
  return costs;
}

// Each row has one place, ranks have their rows in order, and no step takes longer than with the rows as they come.
TEST(BalanceRowsTest, EachRowHasOnePlaceAndNoStepGetsLonger) {
  std::mt19937 random(1);
  for (const RowPlaces& places : {RowPlaces{1, 1, 1}, RowPlaces{1, 2, 3}, RowPlaces{3, 2, 1}, RowPlaces{4, 8, 2}}) {
    for (int i = 0; i < 20; ++i) {
      const std::vector<int64_t> costs = skewed_costs(random, places.all());
      const std::vector<int64_t> dealt = balance_rows(costs, places);
      EXPECT_EQ(balance_rows(costs, places), dealt) << "every rank computes the same";
      for (auto share = dealt.begin(); share != dealt.end(); share += places.rows)
        EXPECT_TRUE(std::is_sorted(share, share + places.rows));
      EXPECT_LE(work_of(dealt, costs, places), work_of(ascending(places.all()), costs, places));
      std::vector<int64_t> rows = dealt;
      std::sort(rows.begin(), rows.end());
      EXPECT_EQ(rows, ascending(places.all()));
    }
  }
  EXPECT_EQ(balance_rows({0, 0, 0, 0}, {1, 2, 2}), ascending(4)) << "rows without work stay as they come";
  EXPECT_EQ(balance_rows({9, 8, 1, 2}, {1, 2, 2}), (std::vector<int64_t>{0, 2, 1, 3}));
  EXPECT_EQ(balance_rows({9, 1, 8, 2}, {2, 2, 1}), (std::vector<int64_t>{0, 2, 1, 3})) << "equal rows work together";
}

// On skewed costs the ranks wait much less for each other. A row that costs more than a mean share remains a limit.
TEST(BalanceRowsTest, SkewedSharesBecomeAboutEqual) {
  std::mt19937 random(2);
  struct Case {
    RowPlaces places;
    double plain, balanced;  // The largest share over the mean one: at least as they come, and at most balanced.
  };
  for (const auto& [places, least, most] :
       {Case{{1, 8, 8}, 1.6, 1.2}, Case{{4, 8, 4}, 2, 1.3}, Case{{8, 8, 1}, 3, 1.75}}) {
    double plain = 0, dealt = 0, best = 0;
    for (int i = 0; i < 50; ++i) {
      const std::vector<int64_t> costs = skewed_costs(random, places.all());
      plain += static_cast<double>(work_of(ascending(places.all()), costs, places));
      dealt += static_cast<double>(work_of(balance_rows(costs, places), costs, places));
      best += static_cast<double>(std::accumulate(costs.begin(), costs.end(), int64_t{0})) /
              static_cast<double>(places.ranks);
    }
    std::printf("%ld microbatches, %ld ranks, %ld rows: largest share / mean %.2f as they come, %.3f balanced\n",
                places.microbatches, places.ranks, places.rows, plain / best, dealt / best);
    EXPECT_GT(plain / best, least);
    EXPECT_LT(dealt / best, most);
  }
}

// Threads that need rows of the same steps weigh each row once, and all find the same places.
TEST(RowBalanceTest, ThreadsWeighAStepTogether) {
  const RowPlaces places{.microbatches = 2, .ranks = 2, .rows = 3};
  std::atomic<int> weighed = 0;
  RowBalance balance(places, [&](int64_t row) -> absl::StatusOr<int64_t> {
    ++weighed;
    if (row == 30) return absl::DataLossError("row 30");
    return row * 7 % 5;
  });
  std::vector<std::vector<int64_t>> found(4, std::vector<int64_t>(24));
  std::vector<std::thread> threads;
  for (std::vector<int64_t>& own : found) {
    threads.emplace_back([&] {
      for (int64_t place = 0; place < 24; ++place) own[place] = *balance.row_at(place / 12 * 12, place % 12);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(weighed, 24);
  for (const auto& own : found) EXPECT_EQ(own, found[0]);
  std::sort(found[0].begin(), found[0].end());
  EXPECT_EQ(found[0], ascending(24));
  EXPECT_EQ(balance.row_at(24, 0).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::data
