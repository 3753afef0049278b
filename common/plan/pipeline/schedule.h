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

// What a rank does with one microbatch of one of its stages.
enum class Work {
  kForward,         // F
  kBackward,        // B: input and weight gradients together
  kInputGradient,   // I
  kWeightGradient,  // W
  kReduce,  // R: the stage's weight gradients are complete; sum them over the data-parallel ranks. No microbatch.
};

struct Action {
  int stage = 0;  // Global index: 0 holds the embedding.
  Work work = Work::kForward;
  int microbatch = -1;

  bool operator==(const Action&) const = default;
};

// "F", "B", "I", "W" or "R".
char letter(Work work);
// Stage, work and microbatch as torch writes them: "0F3"; "2R" for a reduction.
std::string to_string(const Action& action);

// One entry of a rank's list: usually one action; two (a forward and a backward of different microbatches) may run
// side by side (DualPipeV).
struct Step {
  std::vector<Action> actions;

  bool operator==(const Step&) const = default;
};

// Where stages live.
enum class Placement {
  kLoop,  // Rank r owns stages r, r + ranks, r + 2 ranks, ...
  kV,     // Rank r owns r and 2 ranks - 1 - r.
};

// A whole step of all ranks of one pipeline. Transfers are implied: a stage's output goes to the rank of the next stage
// as soon as it exists, its input gradient to the rank of the stage before.
struct Schedule {
  std::string name;
  int ranks = 1;
  int stages = 1;
  int microbatches = 1;
  Placement placement = Placement::kLoop;
  bool forward_only = false;             // Validation: no gradients, and nothing to reduce.
  std::vector<std::vector<Step>> steps;  // One list per rank.

  int rank_of(int stage) const;
  std::vector<int> stages_of(int rank) const;  // In ascending order.
};

// Puts the reduction of each stage right after the last weight gradient of that stage in a rank's list.
std::vector<Step> with_reductions(std::vector<Step> steps);

// What errors call a rank's list, or one entry of it: "rank 1", "rank 1, step 3". A schedule that was read from a file
// has rows and columns instead.
using Where = std::function<std::string(int rank, std::optional<std::size_t> step)>;
std::string rank_and_step(int rank, std::optional<std::size_t> step);

// Whether the schedule computes a step: each microbatch once through each stage on the rank that owns it (F, then B or
// I and later W; F alone when forward_only), reductions after a stage's last weight gradient, pairs of one forward and
// one backward. Errors: InvalidArgument naming place and action.
absl::Status check(const Schedule& schedule, const Where& where = rank_and_step);

}  // namespace titan::pipeline
