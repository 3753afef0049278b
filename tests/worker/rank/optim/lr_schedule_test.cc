#include "worker/rank/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace titan::optim {
namespace {

nlohmann::json load_curves() {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    if (argument.rfind("--goldens=", 0) == 0) return nlohmann::json::parse(std::ifstream(argument.substr(10)));
  }
  return {};
}

// Each factor is that of torchtitan's scheduler (make_lr_curves.py).
TEST(LrScheduleTest, FollowsTorchtitansCurves) {
  const nlohmann::json curves = load_curves();
  ASSERT_FALSE(curves.is_null()) << "run with --goldens=.../lr_curves.json";
  ASSERT_GE(curves["cases"].size(), 12u);
  for (const nlohmann::json& item : curves["cases"]) {
    LrScheduleOptions options;
    options.warmup_steps = item["warmup_steps"];
    options.total_steps = item.value("total_steps", item["training_steps"].get<int64_t>());
    if (item.contains("decay_ratio")) options.decay_ratio = item["decay_ratio"].get<double>();
    options.decay_type = item.value("decay_type", "linear");
    options.min_lr_factor = item.value("min_lr_factor", 0.0);
    const auto schedule = LrSchedule::create(options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    int64_t step = 0;
    for (const double factor : item["factors"]) {
      EXPECT_NEAR(schedule->factor(step), factor, 1e-15) << item << " step " << step;
      ++step;
    }
  }
}

TEST(LrScheduleTest, WarnsWhenItShortensPhases) {
  EXPECT_EQ(LrSchedule::create({.warmup_steps = 50, .total_steps = 20})->warnings().size(), 1u);
  EXPECT_EQ(LrSchedule::create({.warmup_steps = 15, .total_steps = 20, .decay_ratio = 0.8})->warnings().size(), 1u);
  EXPECT_TRUE(LrSchedule::create({.warmup_steps = 5, .total_steps = 20})->warnings().empty());
}

// Training beyond the schedule's end must not get a negative rate.
TEST(LrScheduleTest, StaysAtTheLastValuePastItsEnd) {
  const LrSchedule schedule = *LrSchedule::create({.warmup_steps = 2, .total_steps = 10, .min_lr_factor = 0.1});
  EXPECT_DOUBLE_EQ(schedule.factor(10), 0.1);
  EXPECT_DOUBLE_EQ(schedule.factor(1000), 0.1);
}

TEST(LrScheduleTest, RefusesWrongKeysByName) {
  const auto message = [](const LrScheduleOptions& options) { return LrSchedule::create(options).status().ToString(); };
  EXPECT_NE(message({.total_steps = 10, .decay_type = "step"}).find("lr_scheduler.decay_type: \"step\""),
            std::string::npos);
  EXPECT_NE(message({.total_steps = 10, .decay_ratio = 1.5}).find("lr_scheduler.decay_ratio: 1.5"), std::string::npos);
  EXPECT_NE(message({.warmup_steps = -1, .total_steps = 10}).find("lr_scheduler.warmup_steps: -1"), std::string::npos);
}

}  // namespace
}  // namespace titan::optim
