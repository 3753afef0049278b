#include "controller/job/ettr.h"

#include <gtest/gtest.h>

namespace titan::job {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::shared_ptr<const AttemptRecord> attempt(int64_t start_seconds, std::map<std::string, double> phases) {
  AttemptRecord record;
  record.start_time_ns = start_seconds * kSecond;
  record.phase_seconds = std::move(phases);
  return std::make_shared<const AttemptRecord>(std::move(record));
}

// All phases of all attempts count as lost, over the wall time since the first attempt.
TEST(EttrTest, LostPhasesOverWallTime) {
  const std::vector attempts = {attempt(100, {{"start", 1}, {"load", 1}}),
                                attempt(140, {{"detect", 3}, {"replay", 5}})};
  EXPECT_DOUBLE_EQ(ettr({}, attempts, 200 * kSecond), 0.9);
}

// The ratio of a finished job no longer changes, and a job that never started has lost nothing.
TEST(EttrTest, EndsWithTheJobAndStartsAtOne) {
  JobRecord over;
  over.end_time_ns = 110 * kSecond;
  EXPECT_DOUBLE_EQ(ettr(over, {attempt(100, {{"start", 1}})}, 1000 * kSecond), 0.9);
  EXPECT_DOUBLE_EQ(ettr({}, {}, 1000 * kSecond), 1);
}

// If a clock went backwards or phases exceed the wall time, the ratio stays between 0 and 1.
TEST(EttrTest, RatioStaysBetweenZeroAndOne) {
  EXPECT_DOUBLE_EQ(ettr({}, {attempt(100, {{"start", 1}})}, 90 * kSecond), 1);
  EXPECT_DOUBLE_EQ(ettr({}, {attempt(100, {{"start", 50}})}, 110 * kSecond), 0);
}

}  // namespace
}  // namespace titan::job
