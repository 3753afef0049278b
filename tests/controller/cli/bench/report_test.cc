#include "controller/cli/bench/figures.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

using ::testing::ElementsAre;

std::vector<Measured> two_configurations() {
  return {{.name = "base",
           .overrides = {},
           .runs = {{{"tokens_per_second", 1000}, {"step_seconds", 0.2}, {"forward_seconds", 0.05}},
                    {{"tokens_per_second", 2000}, {"step_seconds", 0.1}, {"forward_seconds", 0.025}}}},
          {.name = "slow",
           .overrides = {"--resources.kernels", "reference"},
           .runs = {{{"tokens_per_second", 500}, {"step_seconds", 0.4}, {"mfu_percent", 12.5}},
                    {{"tokens_per_second", 500}, {"step_seconds", 0.4}, {"mfu_percent", 12.5}}}}};
}

TEST(BenchReportTest, NumbersAreGrouped) {
  EXPECT_EQ(grouped(0, 1), "0.0");
  EXPECT_EQ(grouped(999.96, 1), "1,000.0");
  EXPECT_EQ(grouped(-1234567, 0), "-1,234,567");
  EXPECT_EQ(grouped(123, 0), "123");
}

// Only known figures have a row; a phase also has its share of the step.
TEST(BenchReportTest, RowsHaveEachFigureAndItsRatio) {
  EXPECT_THAT(
      table_rows(two_configurations()),
      ElementsAre(ElementsAre("", "base", "slow", "/ base"),
                  ElementsAre("tokens/s a rank", "1,500 (1,000 to 2,000)", "500 (500 to 500)", "0.38 (0.25 to 0.50)"),
                  ElementsAre("step, ms", "150.0 (100.0 to 200.0)", "400.0 (400.0 to 400.0)", "3.00 (2.00 to 4.00)"),
                  ElementsAre("  forward, ms", "37.5 (25.0 to 50.0) 25%", "-", "-"),
                  ElementsAre("MFU, %", "-", "12.50 (12.50 to 12.50)", "-")));
}

TEST(BenchReportTest, OneRunHasNoSpread) {
  auto all = two_configurations();
  all.pop_back();
  all[0].runs.pop_back();
  EXPECT_THAT(table_rows(all)[1], ElementsAre("tokens/s a rank", "1,000"));
}

TEST(BenchReportTest, JsonHasEveryRun) {
  const auto found = report_json(two_configurations())["configurations"];
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0]["figures"]["tokens_per_second"]["median"], 1500);
  EXPECT_EQ(found[0]["runs"][1]["step_seconds"], 0.1);
  EXPECT_FALSE(found[0].contains("ratios"));
  EXPECT_EQ(found[1]["name"], "slow");
  EXPECT_EQ(found[1]["overrides"], (std::vector<std::string>{"--resources.kernels", "reference"}));
  EXPECT_EQ(found[1]["ratios"]["tokens_per_second"]["greatest"], 0.5);
  EXPECT_FALSE(found[1]["ratios"].contains("forward_seconds"));
}

}  // namespace
}  // namespace titan::cli
