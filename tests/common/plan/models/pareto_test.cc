#include "common/plan/models/pareto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/common/plan/models/all_subsets.h"

namespace titan::models {
namespace {

using ::testing::HasSubstr;

TEST(ParetoTest, FindsTheBestOfAllSubsets) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<KnapsackItem> items(1 + random() % 10);
    for (KnapsackItem& item : items)
      item = {1 + static_cast<int64_t>(random() % 50), static_cast<double>(random() % 100)};
    const std::vector<ParetoPoint> choices = pareto_front(items);
    for (int64_t budget = 0; budget < 300; budget += 7) {
      EXPECT_EQ(best_within(choices, budget).flops, testing::best_of_all_subsets(items, budget));
    }
  }
}

TEST(ParetoTest, DrawsTheChoiceAndStaysSmall) {
  std::vector<KnapsackItem> items;
  for (int i = 0; i < 40; ++i) items.push_back({1000 + i * i * 37, 1e9 + i * 1.1e7});
  const std::vector<ParetoPoint> choices = pareto_front(items);
  EXPECT_LE(choices.size(), kMaxChoices);
  EXPECT_EQ(choices.front().bytes, 0);
  EXPECT_EQ(choices.back().taken, std::vector<bool>(40, true));
  const std::string svg = draw_pareto_front("layers.0", {choices.front(), choices[1], choices.back()}, choices[1]);
  EXPECT_THAT(svg, HasSubstr("layers.0"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

}  // namespace
}  // namespace titan::models
