#pragma once

// Represents a pipeline schedule as each rank's list of steps, and checks that it is complete.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace titan::pipeline {

// Computation of a rank on one microbatch of one of its stages.
enum class ComputationType {
  kForward,         // F
  kBackward,        // B: input and weight gradients together
  kInputGradient,   // I
  kWeightGradient,  // W
  kReduce,          // R: sums the stage's complete weight gradients over the data-parallel ranks. Has no microbatch.
};

struct Action {
  int stage = 0;  // Global index; stage 0 holds the embedding.
  ComputationType work = ComputationType::kForward;
  int microbatch = -1;

  bool operator==(const Action&) const = default;
};

// Returns "F", "B", "I", "W" or "R".
char letter(ComputationType work);
// Returns stage, work and microbatch as torch writes them: "0F3"; "2R" for a reduction.
std::string to_string(const Action& action);

// One entry of a rank's list: one action, or two (a forward and a backward of different microbatches) that may run at
// the same time (DualPipeV).
struct ScheduleStep {
  std::vector<Action> actions;

  bool operator==(const ScheduleStep&) const = default;
};

// Which rank owns which stages.
enum class StagePlacement {
  kLoop,  // Rank r owns stages r, r + ranks, r + 2 ranks, ...
  kV,     // Rank r owns r and 2 ranks - 1 - r.
};

// A whole step of all ranks of one pipeline. Transfers are implied: a stage's output goes to the rank of the next stage
// as soon as it exists, its input gradient to the rank of the previous stage.
struct Schedule {
  std::string name;
  int ranks = 1;
  int stages = 1;
  int microbatches = 1;
  StagePlacement placement = StagePlacement::kLoop;
  bool forward_only = false;                     // For validation: no gradients and no reductions.
  std::vector<std::vector<ScheduleStep>> steps;  // One list per rank.

  int rank_of(int stage) const;
  std::vector<int> stages_of(int rank) const;  // In ascending order.
};

// Inserts the reduction of each stage right after the last weight gradient of that stage in a rank's list.
std::vector<ScheduleStep> with_reductions(std::vector<ScheduleStep> steps);

// Names a rank's list, or one entry of it, in errors: "rank 1", "rank 1, step 3". A schedule read from a file has rows
// and columns instead.
using Where = std::function<std::string(int rank, std::optional<std::size_t> step)>;
std::string rank_and_step(int rank, std::optional<std::size_t> step);

// Checks that the schedule computes a step: each microbatch passes each stage once on the rank that owns it (F, then B
// or I and later W; only F when forward_only), reductions come after a stage's last weight gradient, and a pair is F
// with B or I. Errors: InvalidArgument naming rank, step and action.
absl::Status check(const Schedule& schedule, const Where& where = rank_and_step);

}  // namespace titan::pipeline
