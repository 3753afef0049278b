#pragma once

// Represents a pipeline schedule as each rank's list of steps, and checks that it is complete.

#include <cstdint>
#include <string>
#include <vector>

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

// Puts the reduction of each stage right behind the last weight gradient of that stage in a rank's list.
std::vector<Step> with_reductions(std::vector<Step> steps);

}  // namespace titan::pipeline
