#include "common/plan/pipeline/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/plan/pipeline/csv.h"
#include "common/plan/pipeline/generators.h"

namespace titan::pipeline {
namespace {

using ::testing::HasSubstr;

Schedule two_ranks() { return *generate("1F1B", 2, 1, 2); }

std::string why(const Schedule& schedule) {
  const auto run = simulate(schedule);
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(run.status().message());
}

// Computed by hand: two ranks, F 1, B 2 + 1, transfers 1.
TEST(SimulatorTest, TimesFollowTheRules) {
  const auto run = simulate(two_ranks(), {.forward = 1, .input_gradient = 2, .weight_gradient = 1, .transfer = 1});
  ASSERT_TRUE(run.ok()) << run.status();
  // Rank 1: F0 2-3, B0 3-6, F1 6-7, B1 7-10. Rank 0: F0 0-1, F1 1-2, B0 7-10, B1 11-14.
  EXPECT_EQ(run->makespan, 14);
  EXPECT_EQ(run->ranks[0].actions[2].start, 7);
  EXPECT_EQ(run->ranks[1].actions[2].start, 6);
  EXPECT_EQ(run->ranks[0].busy, 8);
  EXPECT_DOUBLE_EQ(run->bubble, 1 - 16.0 / 28);
  EXPECT_EQ(run->ranks[0].peak_activations, 2);
  EXPECT_EQ(run->ranks[1].peak_by_stage.at(1), 1);
}

// The two halves of a pair share the rank's time if they overlap, and run one after the other if not.
TEST(SimulatorTest, PairsOverlapOnlyOnRequest) {
  const Schedule dual = *generate("DualPipeV", 1, 2, 4);
  const auto apart = *simulate(dual), together = *simulate(dual, {.pairs_overlap = true});
  EXPECT_EQ(apart.makespan, 24);
  EXPECT_EQ(together.makespan, 24 - 5);  // Five pairs, each saving its F.
  EXPECT_EQ(together.ranks[0].busy, together.makespan);
  EXPECT_NEAR(together.bubble, 0, 1e-12);
}

TEST(SimulatorTest, SlowStagesScaleTheirWork) {
  const auto run = simulate(*generate("GPipe", 2, 1, 1), {.stage_scale = {1, 3}});
  EXPECT_EQ(run->makespan, 1 + 3 + 6 + 2);
  EXPECT_THAT(why([] {
                Schedule s = two_ranks();
                s.stages = 3;
                return s;
              }()),
              HasSubstr("3 stages on 2 ranks"));
}

// Every damage to a correct schedule is found and named.
TEST(SimulatorTest, NamesWhatIsWrong) {
  const auto broken = [](auto change) {
    Schedule schedule = two_ranks();
    change(schedule.steps);
    return why(schedule);
  };
  using Steps = std::vector<std::vector<ScheduleStep>>;
  EXPECT_THAT(broken([](Steps& s) { std::swap(s[0][0], s[0][2]); }),
              HasSubstr("rank 0, step 0: 0B0 comes before its forward pass"));
  EXPECT_THAT(broken([](Steps& s) { s[0].erase(s[0].begin() + 3); }),
              HasSubstr("rank 0 has no backward pass of stage 0 for microbatch 1"));
  EXPECT_THAT(broken([](Steps& s) { s[0].insert(s[0].begin(), s[0][0]); }), HasSubstr("step 1: 0F0 comes twice"));
  EXPECT_THAT(broken([](Steps& s) { std::swap(s[0], s[1]); }), HasSubstr("1F0 works on a stage that rank 1 owns"));
  EXPECT_THAT(broken([](Steps& s) { s[1].pop_back(); }), HasSubstr("rank 1 never reduces stage 1"));
  EXPECT_THAT(broken([](Steps& s) { s[1][0].actions[0].microbatch = 2; }), HasSubstr("not one of 0 to 1"));
  EXPECT_THAT(broken([](Steps& s) { s[1][0].actions[0].stage = 2; }), HasSubstr("stage that is not one of 0 to 1"));
  EXPECT_THAT(broken([](Steps& s) { s[1][1].actions[0].work = ComputationType::kWeightGradient; }),
              HasSubstr("1W0 comes before its input gradient"));
  EXPECT_THAT(broken([](Steps& s) { s[1][1].actions[0].work = ComputationType::kInputGradient; }),
              HasSubstr("rank 1 has no weight gradient of stage 1 for microbatch 0"));
  EXPECT_THAT(broken([](Steps& s) { s[0][0].actions.push_back(s[0][1].actions[0]); }),
              HasSubstr("cannot run together with 0F0"));
  EXPECT_THAT(broken([](Steps& s) { std::swap(s[0][s[0].size() - 1], s[0][s[0].size() - 2]); }),
              HasSubstr("0R comes before the weight gradient of microbatch 1"));
  EXPECT_THAT(broken([](Steps& s) { s[0][0].actions.clear(); }), HasSubstr("has 0 actions"));
  EXPECT_THAT(broken([](Steps& s) { s.pop_back(); }), HasSubstr("lists for 1 rank instead of 2"));
}

// Each of two ranks waits for later work of the other.
TEST(SimulatorTest, FindsDeadlocks) {
  Schedule schedule = two_ranks();
  ASSERT_TRUE(simulate(schedule).ok());
  const auto list = [](int stage, const std::vector<std::pair<ComputationType, int>>& work) {
    std::vector<ScheduleStep> steps;
    for (const auto& [what, microbatch] : work) steps.push_back({{Action{stage, what, microbatch}}});
    return with_reductions(steps);
  };
  using enum ComputationType;
  schedule.steps = {list(0, {{kForward, 0}, {kBackward, 0}, {kForward, 1}, {kBackward, 1}}),
                    list(1, {{kForward, 0}, {kForward, 1}, {kBackward, 0}, {kBackward, 1}})};
  EXPECT_THAT(why(schedule), HasSubstr("wait for each other forever: rank 0, step 1: 0B0 waits for the gradient of "
                                       "stage 1; rank 1, step 1: 1F1 waits for the output of stage 0"));
}

// A random swap of two neighbours either keeps the schedule valid or is rejected; an invalid schedule never runs.
TEST(SimulatorTest, RandomSwapsNeverRunInvalidSchedules) {
  std::mt19937 random(7);
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const ScheduleKind& kind = schedule_kinds()[random() % schedule_kinds().size()];
    const int ranks = 2 + static_cast<int>(random() % 3);
    Schedule schedule = *generate(kind.name, ranks, kind.default_stages_per_rank, 2 * ranks);
    std::vector<ScheduleStep>& steps = schedule.steps[random() % ranks];
    const std::size_t at = random() % (steps.size() - 1);
    std::swap(steps[at], steps[at + 1]);
    const auto run = simulate(schedule);
    if (!run.ok()) {
      ++refused;
      continue;
    }
    for (const RankTimeline& rank : run->ranks) {
      for (std::size_t i = 1; i < rank.actions.size(); ++i) ASSERT_GE(rank.actions[i].start, rank.actions[i - 1].start);
    }
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace titan::pipeline
