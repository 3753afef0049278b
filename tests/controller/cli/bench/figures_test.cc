#include "controller/cli/bench/figures.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

using ::testing::HasSubstr;

const absl::Time kLaunch = absl::FromUnixSeconds(1700000000);

// Makes one row of metrics.jsonl for a job of two ranks with 100 tokens a step each; half of a step is its backward
// pass.
std::string step_line(int step, double seconds, double saving = 0, std::optional<double> mfu = std::nullopt) {
  nlohmann::json line = {
      {"step", step},
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", kLaunch + absl::Seconds(step), absl::UTCTimeZone())},
      {"n_tokens_seen", step * 200},
      {"time_metrics/end_to_end(s)", seconds},
      {"time_metrics/data(s)", 0},
      {"time_metrics/forward(s)", seconds / 4},
      {"time_metrics/backward(s)", seconds / 2},
      {"time_metrics/optimizer(s)", 0.1},
      {"time_metrics/checkpoint(s)", saving},
      {"memory/max_reserved(GiB)", step}};
  if (mfu) line["mfu(%)"] = *mfu;
  return line.dump() + "\n";
}

TEST(BenchFiguresTest, MediansAndSpreads) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  const Spread found = spread({3, 9, 1, 4});
  EXPECT_EQ(found.median, 3.5);
  EXPECT_EQ(found.least, 1);
  EXPECT_EQ(found.greatest, 9);
}

// Warm-up steps do not count, a step that was logged twice counts once, and one slow step does not move the median.
TEST(BenchFiguresTest, ComputesFiguresOfARun) {
  const std::string metrics = step_line(1, 50) + step_line(2, 0.5) + step_line(3, 99) + step_line(3, 0.4) +
                              step_line(4, 3.0) + step_line(5, 0.6) + "{\"step\": 6, \"half";
  const auto figures = figures_of({.metrics = metrics, .launched = kLaunch, .ranks = 2, .warmup = 2});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_DOUBLE_EQ(figures->at("step_seconds"), 0.6);
  EXPECT_DOUBLE_EQ(figures->at("tokens_per_second"), 100 / 0.6);
  EXPECT_DOUBLE_EQ(figures->at("first_step_seconds"), 1);
  EXPECT_DOUBLE_EQ(figures->at("backward_seconds"), (0.2 + 1.5 + 0.3) / 3);
  EXPECT_DOUBLE_EQ(figures->at("optimizer_seconds"), 0.1);
  for (const char* unknown : {"mfu_percent", "device_memory_bytes", "save_seconds", "save_stall_seconds"}) {
    EXPECT_FALSE(figures->contains(unknown)) << unknown;
  }
}

TEST(BenchFiguresTest, ComputesFiguresOfADevice) {
  const std::string metrics = step_line(1, 1, 0, 10) + step_line(2, 1, 0, 40) + step_line(3, 1, 0, 60);
  const auto figures = figures_of({.metrics = metrics, .launched = kLaunch, .ranks = 2, .warmup = 1, .on_cpu = false});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_DOUBLE_EQ(figures->at("mfu_percent"), 50);
  EXPECT_DOUBLE_EQ(figures->at("device_memory_bytes"), 3.0 * (1LL << 30));
}

// Utilization is taken from the same step as the tokens per second: a mean of rates would weight slow and fast steps
// equally.
TEST(BenchFiguresTest, UtilizationComesFromTheMedianStep) {
  const std::string metrics =
      step_line(1, 1, 0, 9) + step_line(2, 1, 0, 60) + step_line(3, 3, 0, 20) + step_line(4, 1, 0, 60);
  const auto figures = figures_of({.metrics = metrics, .launched = kLaunch, .ranks = 2, .warmup = 1, .on_cpu = false});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_DOUBLE_EQ(figures->at("mfu_percent"), 60);
}

// The save after step 3 is in the row of step 4, so the duration of step 4 does not count.
TEST(BenchFiguresTest, ComputesFiguresOfASave) {
  const std::string metrics =
      step_line(1, 5) + step_line(2, 0.5) + step_line(3, 0.5) + step_line(4, 2, 1.25) + step_line(5, 0.5);
  const auto figures = figures_of({.metrics = metrics,
                                   .launched = kLaunch,
                                   .ranks = 2,
                                   .warmup = 1,
                                   .saved_step = 3,
                                   .saved_bytes = 800,
                                   .published = kLaunch + absl::Seconds(3 + 4)});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_DOUBLE_EQ(figures->at("save_stall_seconds"), 1.25);
  EXPECT_DOUBLE_EQ(figures->at("save_seconds"), 4);
  EXPECT_DOUBLE_EQ(figures->at("save_bytes_per_second"), 200);
  EXPECT_DOUBLE_EQ(figures->at("step_seconds"), 0.5);
}

// Missing figures are an error, not zeroes.
TEST(BenchFiguresTest, ARunWithoutFiguresIsAnError) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "no step was logged"},
      {step_line(1, 1) + step_line(2, 1), "no step after the warm-up"},
      {step_line(1, 1) + step_line(2, 1) + R"x({"step":3,"time_metrics/end_to_end(s)":1})x", "n_tokens_seen"}};
  for (const auto& [metrics, why] : cases) {
    const absl::Status status = figures_of({.metrics = metrics, .launched = kLaunch, .warmup = 2}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

// Ratios compare runs of the same round: the second round, in which the machine was half as fast, changes no ratio.
TEST(BenchFiguresTest, RatiosCompareRunsOfOneRound) {
  const Measured base{.name = "base", .overrides = {}, .runs = {{{"s", 10}}, {{"s", 5}}, {{"s", 10}}}};
  const Measured other{.name = "other", .overrides = {}, .runs = {{{"s", 20}}, {{"s", 10}}, {{"s", 30}, {"m", 1}}}};
  const auto ratio = ratio_of(other, base, "s");
  ASSERT_TRUE(ratio.has_value());
  EXPECT_EQ(ratio->median, 2);
  EXPECT_EQ(ratio->least, 2);
  EXPECT_EQ(ratio->greatest, 3);
  EXPECT_EQ(spread_of(other, "m")->median, 1) << "only the runs that have the figure count";
  EXPECT_FALSE(ratio_of(other, base, "m").has_value());
  EXPECT_FALSE(spread_of(base, "m").has_value());
}

}  // namespace
}  // namespace titan::cli
