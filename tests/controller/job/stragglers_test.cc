// Tests which ranks are reported as slow, with simulated own times.

#include "controller/job/stragglers.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Ranks that step together, each step as long as the slowest rank's own part, and are reported once a second.
class Steps {
 public:
  Steps(std::vector<double> own_milliseconds, int stages = 1, uint32_t seed = 1)
      : own(std::move(own_milliseconds)), nanos_(own.size()), silent(own.size()), stages_(stages), random_(seed) {}

  void run(absl::Duration time) {
    for (const absl::Duration end = now + time; now < end;) {
      now += absl::Seconds(1);
      while (trained_ < now) step();
      for (size_t rank = 0; rank < own.size(); ++rank) {
        if (!silent[rank]) stragglers.see(static_cast<int>(rank), steps_, nanos_[rank], now);
      }
      for (const auto& change : stragglers.judge(now, static_cast<int>(own.size()), stages_)) {
        (change.slow ? flagged : recovered).push_back(change.rank);
        reported_at = now;
      }
    }
  }

  std::vector<double> own;  // Own milliseconds of each rank.
  double noise = 0;         // Standard deviation, relative to the own time.
  double hiccups = 0;       // Probability of a step that takes ten times as long.
  absl::Duration now, reported_at;
  std::vector<int> flagged, recovered;
  Stragglers stragglers;

 private:
  void step() {
    double longest = 0;
    for (size_t rank = 0; rank < own.size(); ++rank) {
      double took = own[rank] * std::max(0.1, 1 + noise * std::normal_distribution<double>()(random_));
      if (std::bernoulli_distribution(hiccups)(random_)) took *= 10;
      nanos_[rank] += static_cast<int64_t>(took * 1e6);
      longest = std::max(longest, took);
    }
    trained_ += absl::Milliseconds(longest);
    ++steps_;
  }

  std::vector<int64_t> nanos_;

 public:
  std::vector<bool> silent;

 private:
  int64_t steps_ = 0;
  absl::Duration trained_;
  const int stages_;
  std::mt19937 random_;
};

TEST(StragglersTest, RandomDifferencesAreNeverSlow) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    for (const size_t ranks : {2, 3, 8}) {
      Steps steps(std::vector<double>(ranks, 200), 1, seed);
      steps.noise = 0.3;
      steps.hiccups = 0.01;
      steps.run(absl::Hours(1));
      EXPECT_THAT(steps.flagged, IsEmpty()) << "seed " << seed << ", " << ranks << " ranks";
    }
  }
}

// Three slow windows in a row are needed. The window in which the rank became slow counts only if more than half of it
// is slow, so the report takes 3.5 windows at most.
TEST(StragglersTest, SlowRankIsReportedWithinThreeWindows) {
  for (const size_t ranks : {2, 3, 4, 16}) {
    for (const int begins : {0, 1, 5, 8}) {  // Seconds into a window.
      Steps steps(std::vector<double>(ranks, 100));
      steps.noise = 0.2;
      steps.run(absl::Minutes(1) + absl::Seconds(begins));
      steps.own.back() = 330;
      const absl::Duration since = steps.now;
      steps.run(absl::Minutes(5));
      EXPECT_THAT(steps.flagged, ElementsAre(static_cast<int>(ranks) - 1));
      EXPECT_LE(steps.reported_at - since, 3.5 * Stragglers::kWindow + absl::Seconds(1)) << begins;
      const Stragglers::Slow& figures = steps.stragglers.slow().at(static_cast<int>(ranks) - 1);
      EXPECT_NEAR(figures.score, 1 / 3.3, 0.05);
      EXPECT_NEAR(absl::ToDoubleMilliseconds(figures.own), 330, 30);
      EXPECT_NEAR(absl::ToDoubleMilliseconds(figures.peers), 100, 15);
    }
  }
}

TEST(StragglersTest, HalfOfTheRanksMayBeSlow) {
  Steps steps({100, 100, 330, 330});
  steps.run(absl::Minutes(1));
  EXPECT_THAT(steps.flagged, ElementsAre(2, 3));
}

TEST(StragglersTest, RecoveredRankIsReportedOnce) {
  Steps steps({100, 300});
  steps.run(absl::Minutes(1));
  ASSERT_THAT(steps.flagged, ElementsAre(1));
  steps.own[1] = 125;  // A score of 0.8 is neither slow nor recovered.
  steps.run(absl::Minutes(5));
  EXPECT_THAT(steps.recovered, IsEmpty());
  EXPECT_EQ(steps.stragglers.slow().size(), 1u);
  steps.own[1] = 100;
  steps.run(absl::Minutes(5));
  EXPECT_THAT(steps.recovered, ElementsAre(1));
  EXPECT_THAT(steps.stragglers.slow(), IsEmpty());
  EXPECT_THAT(steps.flagged, ElementsAre(1));
}

TEST(StragglersTest, ShortSlowdownsAreIgnored) {
  Steps steps({100, 100, 100});
  for (int i = 0; i < 20; ++i) {
    steps.own[1] = 1000;
    steps.run(absl::Seconds(15));
    steps.own[1] = 100;
    steps.run(absl::Seconds(45));
  }
  EXPECT_THAT(steps.flagged, IsEmpty());
}

TEST(StragglersTest, StagesOfAPipelineMayDiffer) {
  Steps steps({100, 100, 300, 300, 40, 40}, /*stages=*/3);
  steps.run(absl::Minutes(10));
  EXPECT_THAT(steps.flagged, IsEmpty());
  steps.own[4] = 90;
  steps.run(absl::Minutes(1));
  EXPECT_THAT(steps.flagged, ElementsAre(4));
}

TEST(StragglersTest, RankWithoutPeersIsNotJudged) {
  Steps alone({100});
  alone.run(absl::Minutes(5));
  EXPECT_THAT(alone.flagged, IsEmpty());
  Steps one_a_stage({100, 900}, /*stages=*/2);
  one_a_stage.run(absl::Minutes(5));
  EXPECT_THAT(one_a_stage.flagged, IsEmpty());
}

// A rank is not judged while its node is silent or if its program measures nothing.
TEST(StragglersTest, SilentRankIsNotJudged) {
  Steps steps({100, 100, 300});
  steps.run(absl::Seconds(20));
  steps.silent[2] = true;
  steps.run(absl::Minutes(5));
  EXPECT_THAT(steps.flagged, IsEmpty());
  steps.silent[2] = false;  // Now all its work of the silent time is reported at once.
  steps.run(absl::Seconds(20));
  EXPECT_THAT(steps.flagged, IsEmpty());
  steps.run(absl::Seconds(20));
  EXPECT_THAT(steps.flagged, ElementsAre(2));

  Steps old({100, 300});
  old.silent[0] = true;
  old.run(absl::Minutes(5));
  EXPECT_THAT(old.flagged, IsEmpty());
}

// A window has at least five steps, however long they take.
TEST(StragglersTest, SlowStepsMakeLongWindows) {
  Steps steps({9'000, 20'000});
  steps.run(absl::Seconds(290));
  EXPECT_THAT(steps.flagged, IsEmpty());
  steps.run(absl::Seconds(20));
  EXPECT_THAT(steps.flagged, ElementsAre(1));
}

TEST(StragglersTest, DifferencesBelowAMillisecondAreIgnored) {
  Steps steps({0.5, 1.3});
  steps.run(absl::Minutes(2));
  EXPECT_THAT(steps.flagged, IsEmpty());
}

}  // namespace
}  // namespace titan::job
