#include "common/plan/pipeline/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMaxRanks = 9, kMaxStages = 4, kMaxMicrobatches = 28;

// Calls `visit` with every schedule that the table allows.
template <typename Visit>
int for_each_schedule(Visit visit) {
  int count = 0;
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
      for (int stages = 1; stages <= kMaxStages; ++stages) {
        for (int microbatches = 1; microbatches <= kMaxMicrobatches; ++microbatches) {
          const absl::StatusOr<Schedule> schedule = generate(kind.name, ranks, stages, microbatches);
          if (!schedule.ok()) continue;
          SCOPED_TRACE(
              absl::StrCat(kind.name, " ranks ", ranks, " stages per rank ", stages, " microbatches ", microbatches));
          visit(*schedule);
          ++count;
          if (::testing::Test::HasFailure()) return count;
        }
      }
    }
  }
  return count;
}

std::vector<std::string> row(const Schedule& schedule, int rank) {
  std::vector<std::string> cells;
  for (const ScheduleStep& step : schedule.steps[rank]) {
    std::string cell;
    for (const Action& action : step.actions) absl::StrAppend(&cell, cell.empty() ? "" : "+", to_string(action));
    cells.push_back(cell);
  }
  return cells;
}

// Every schedule computes each microbatch once on each stage in a legal order and without deadlock, for any costs.
TEST(GeneratorsTest, EveryScheduleRuns) {
  const int count = for_each_schedule([](const Schedule& schedule) {
    for (const Costs& costs :
         {Costs{}, Costs{.forward = 1, .input_gradient = 1.7, .weight_gradient = 0.6, .transfer = 0.3},
          Costs{.forward = 2,
          .input_gradient = 0.5,
          .weight_gradient = 3,
          .transfer = 5,
          .reduce = 1,
          .pairs_overlap = true}}) {
      const auto run = simulate(schedule, costs);
      ASSERT_TRUE(run.ok()) << run.status();
      ASSERT_GE(run->bubble, -1e-12);
    }
  });
  EXPECT_GT(count, 3000);
}

// Returns the time of a step with F = I = W = 1 and free transfers, where theory has an exact formula.
double shortest(const Schedule& s) {
  const int v = s.stages / s.ranks;
  const double work = 3.0 * v * s.microbatches;
  const int idle =
      s.ranks - 1;  // Passes for which the last rank waits for the first microbatch (and the first rank for the last).
  if (s.name == "GPipe" || s.name == "1F1B" || s.name == "Interleaved1F1B") return work + 3 * idle;
  // A round with fewer microbatches than ranks returns before the first rank can take it.
  if (s.name == "LoopedBFS") return work + 3.0 * (v - 1) * std::max(0, s.ranks - s.microbatches) + 3 * idle;
  return work + idle;  // Only the time until the last rank starts: zero bubble, ZB-V and DualPipe.
}

bool known_exactly(const Schedule& s) {
  if (s.name == "Interleaved1F1B" || s.name == "InterleavedZeroBubble")
    return s.microbatches >= s.ranks && s.microbatches % s.ranks == 0;
  if (s.name == "ZBVZeroBubble") return s.microbatches >= 2 * s.ranks - 1;
  return true;
}

// Bubbles equal the closed forms of the papers: (p - 1) (F + B) for GPipe and 1F1B, the same over v with v times
// smaller stages when interleaved, (p - 1) (F + B - 2W) for ZB-H1, and only the filling of the pipeline for the V
// schedules.
TEST(GeneratorsTest, BubblesEqualTheirClosedForms) {
  int known = 0;
  for_each_schedule([&](const Schedule& schedule) {
    const auto run = simulate(schedule);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_GE(run->makespan, 3.0 * schedule.stages / schedule.ranks * schedule.microbatches + schedule.ranks - 1);
    if (!known_exactly(schedule)) return;
    ++known;
    EXPECT_DOUBLE_EQ(run->makespan, shortest(schedule));
    const double work = 3.0 * schedule.stages / schedule.ranks * schedule.microbatches;
    EXPECT_NEAR(run->bubble, 1 - work / shortest(schedule), 1e-12);
  });
  EXPECT_GT(known, 1500);
}

// For forward and backward passes of any lengths, the ramps cost (p - 1) (F + B).
TEST(GeneratorsTest, BubblesOfUnequalPasses) {
  for (const char* name : {"GPipe", "1F1B"}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int microbatches = 1; microbatches <= 20; ++microbatches) {
        const auto run = simulate(*generate(name, ranks, 1, microbatches),
                                  {.forward = 1.3, .input_gradient = 0.7, .weight_gradient = 1.9});
        EXPECT_NEAR(run->makespan, (microbatches + ranks - 1) * (1.3 + 2.6), 1e-9) << name << ranks << microbatches;
      }
    }
  }
}

// Splitting the backward pass pays off: the bubble is below that of 1F1B with the same model (half as many stages, each
// twice as long).
TEST(GeneratorsTest, ZeroBubbleSchedulesAreBelow1F1B) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int microbatches = 2 * ranks; microbatches <= 5 * ranks; microbatches += ranks) {
      const double plain = simulate(*generate("1F1B", ranks, 1, microbatches))->bubble;
      const double interleaved = simulate(*generate("Interleaved1F1B", ranks, 2, microbatches))->bubble;
      for (const char* name : {"InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
        const double split = simulate(*generate(name, ranks, 2, microbatches))->bubble;
        EXPECT_LT(split, plain) << name << " " << ranks << " " << microbatches;
        EXPECT_LT(split, interleaved) << name << " " << ranks << " " << microbatches;
      }
    }
  }
}

// Memory is what each schedule is chosen for. 1F1B holds as many microbatches as there are ranks from this one to the
// last, and GPipe holds all. ZB-V holds on every rank as much as 1F1B on the first (its stages are half as large).
// Interleaved stages are v times smaller, but more microbatches wait. ZB-H1 needs as much as the first rank of 1F1B.
TEST(GeneratorsTest, MemoryPeaks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 2 * ranks; microbatches <= 24; ++microbatches) {
      const auto gpipe = *simulate(*generate("GPipe", ranks, 1, microbatches));
      const auto plain = *simulate(*generate("1F1B", ranks, 1, microbatches));
      const auto v = *simulate(*generate("ZBVZeroBubble", ranks, 2, microbatches));
      const auto dual = *simulate(*generate("DualPipeV", ranks, 2, microbatches));
      const auto split = *simulate(*generate("InterleavedZeroBubble", ranks, 2, microbatches / ranks * ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(gpipe.ranks[rank].peak_activations, microbatches);
        EXPECT_EQ(plain.ranks[rank].peak_activations, std::min(microbatches, ranks - rank));
        EXPECT_EQ(v.ranks[rank].peak_activations, 2 * ranks);
        EXPECT_EQ(dual.ranks[rank].peak_activations, 2 * ranks + 1);
        EXPECT_EQ(split.ranks[rank].peak_activations, 2 * ranks);
      }
    }
    for (int stages = 2; stages <= 4; ++stages) {
      for (int microbatches = 2 * ranks; microbatches <= 6 * ranks; microbatches += ranks) {
        const auto interleaved = *simulate(*generate("Interleaved1F1B", ranks, stages, microbatches));
        const auto looped = *simulate(*generate("LoopedBFS", ranks, stages, microbatches));
        const auto split = *simulate(*generate("InterleavedZeroBubble", ranks, stages, microbatches));
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(interleaved.ranks[rank].peak_activations, 2 * (ranks - rank - 1) + (stages - 1) * ranks + 1);
          EXPECT_EQ(looped.ranks[rank].peak_activations, stages * microbatches);
          EXPECT_EQ(split.ranks[rank].peak_activations, stages * ranks);
        }
      }
    }
  }
}

TEST(GeneratorsTest, OrdersMatchThePapers) {
  const Schedule plain = *generate("1f1b", 2, 1, 3);
  EXPECT_EQ(plain.name, "1F1B");
  EXPECT_THAT(row(plain, 0), ElementsAre("0F0", "0F1", "0B0", "0F2", "0B1", "0B2", "0R"));
  EXPECT_THAT(row(plain, 1), ElementsAre("1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1R"));
  const Schedule v = *generate("ZBVZeroBubble", 2, 2, 3);
  EXPECT_EQ(v.placement, StagePlacement::kV);
  EXPECT_THAT(v.stages_of(0), ElementsAre(0, 3));
  EXPECT_THAT(v.stages_of(1), ElementsAre(1, 2));
  EXPECT_THAT(row(v, 0), ElementsAre("0F0", "0F1", "0F2", "3F0", "3I0", "3W0", "3F1", "3I1", "3W1", "0I0", "0W0", "3F2",
                                     "3I2", "3W2", "3R", "0I1", "0W1", "0I2", "0W2", "0R"));
  const Schedule dual = *generate("DualPipeV", 1, 2, 3);
  EXPECT_THAT(row(dual, 0), ElementsAre("0F0", "1F0", "0F1", "1B0", "1F1+0B0", "0F2+1B1", "1F2+0B1", "1B2", "1R", "0I2",
                                        "0W2", "0R"));
  const Schedule looped = *generate("LoopedBFS", 2, 2, 2);
  EXPECT_THAT(row(looped, 1), ElementsAre("1F0", "1F1", "3F0", "3F1", "3B1", "3B0", "3R", "1B1", "1B0", "1R"));
}

// Validation runs the same stages on the same ranks.
TEST(GeneratorsTest, ForwardOnlyRuns) {
  for_each_schedule([](const Schedule& schedule) {
    const Schedule forward = forward_only(schedule, schedule.microbatches);
    const auto run = simulate(forward);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_GE(run->makespan, 1.0 * schedule.microbatches * schedule.stages / schedule.ranks);
  });
}

TEST(GeneratorsTest, RefusesImpossibleStagesAndMicrobatches) {
  const auto message = [](const char* name, int ranks, int stages, int microbatches) {
    const auto schedule = generate(name, ranks, stages, microbatches);
    EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(schedule.status().message());
  };
  EXPECT_THAT(message("2F2B", 2, 1, 2), HasSubstr("parallelism.pipeline_parallel_schedule: no schedule \"2F2B\"; there "
                                                  "are GPipe, 1F1B, Interleaved1F1B, LoopedBFS"));
  EXPECT_THAT(message("1F1B", 2, 2, 2), HasSubstr("1F1B takes exactly 1 stage per rank, not 2; Interleaved1F1B"));
  EXPECT_THAT(message("LoopedBFS", 2, 1, 2),
              HasSubstr("LoopedBFS takes 2 or more stages per rank, not 1; 1F1B and GPipe"));
  EXPECT_THAT(message("ZBVZeroBubble", 2, 3, 2), HasSubstr("takes exactly 2 stages per rank, not 3"));
  EXPECT_THAT(message("DualPipeV", 4, 2, 7), HasSubstr("as many microbatches as stages (8), but has 7; raise "
                                                       "training.local_batch_size"));
  EXPECT_THAT(message("GPipe", 0, 1, 1), HasSubstr("0 ranks"));
  EXPECT_THAT(message("GPipe", 1024, 1, 1 << 20), HasSubstr("passes a step"));
  EXPECT_THAT(message("GPipe", 1025, 1, 1), HasSubstr("1025 ranks; a pipeline has at most 1024"));
}

}  // namespace
}  // namespace titan::pipeline
