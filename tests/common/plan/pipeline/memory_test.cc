#include <gtest/gtest.h>

#include "common/plan/pipeline/generators.h"
#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {
namespace {

std::vector<std::tuple<double, int, std::int64_t>> rows(const std::vector<HeldActivations>& held) {
  std::vector<std::tuple<double, int, std::int64_t>> result;
  for (const HeldActivations& now : held) result.emplace_back(now.time, now.activations, now.bytes);
  return result;
}

// Computed by hand: rank 0 of two runs F0 F1, waits, B0 F2 B1, waits, B2.
TEST(HeldOverTimeTest, FollowsForwardAndBackward) {
  const Schedule schedule = *generate("1F1B", 2, 1, 3);
  const Simulation run = *simulate(schedule);
  using Rows = std::vector<std::tuple<double, int, std::int64_t>>;
  EXPECT_EQ(rows(held_over_time(run.ranks[0], {100, 7})),
            (Rows{{0, 1, 100}, {1, 2, 200}, {6, 2, 200}, {9, 1, 100}, {12, 0, 0}}));
  EXPECT_EQ(peak_held(held_over_time(run.ranks[1], {100, 7})).bytes, 7);
  EXPECT_EQ(peak_held(held_over_time(run.ranks[0], {})).activations, 2);
  EXPECT_EQ(peak_held({}).activations, 0);
}

// A split backward pass holds its microbatch until the weight gradient, on stages of unequal size.
TEST(HeldOverTimeTest, WeightGradientsRelease) {
  const Schedule schedule = *generate("ZBVZeroBubble", 1, 2, 1);
  const Simulation run = *simulate(schedule);
  ASSERT_EQ(run.makespan, 6);  // Runs F F I W I W.
  const auto held = held_over_time(run.ranks[0], {3, 40});
  EXPECT_EQ(peak_held(held).bytes, 43);
  EXPECT_EQ(peak_held(held).time, 1);
  EXPECT_EQ(held.back().time, 6);
  EXPECT_EQ(held.back().bytes, 0);
}

// On every schedule all microbatches are released, and the peak equals the simulator's.
TEST(HeldOverTimeTest, PeaksEqualTheSimulators) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int microbatches = 1; microbatches <= 17; ++microbatches) {
        const auto schedule = generate(kind.name, ranks, kind.default_stages_per_rank, microbatches);
        if (!schedule.ok()) continue;
        const Simulation run = *simulate(*schedule, {.input_gradient = 1.3, .weight_gradient = 0.4, .transfer = 0.2});
        for (const RankTimeline& rank : run.ranks) {
          const auto held = held_over_time(rank, {});
          EXPECT_EQ(peak_held(held).activations, rank.peak_activations) << kind.name << ranks << " " << microbatches;
          EXPECT_EQ(held.back().activations, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace titan::pipeline
