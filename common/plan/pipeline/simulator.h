#pragma once

// Simulates a schedule: when each rank does what, how long it waits, and which activations it holds.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// Time of one stage's work on one microbatch. B takes input_gradient + weight_gradient.
struct Costs {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double transfer = 0;              // Between stages of different ranks; the sender keeps working meanwhile.
  double reduce = 0;                // For one stage's weight gradients.
  bool pairs_overlap = false;       // The halves of a paired step run at the same time instead of one after the other.
  std::vector<double> stage_scale;  // Multiplies the work (not the transfers) of each stage; empty: 1.

  double of(const Action& action) const;
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

struct RankTimeline {
  std::vector<TimedAction> actions;
  double busy = 0;           // Working time; overlapped work is counted once.
  double bubble = 0;         // 1 - busy / makespan.
  int peak_activations = 0;  // Most microbatches whose activations it holds at once, over its stages.
  std::map<int, int> peak_by_stage;
};

struct Simulation {
  double makespan = 0;
  double bubble = 0;  // Idle share of all ranks' time.
  std::vector<RankTimeline> ranks;
};

// Runs a schedule under its data dependencies: F of stage s waits for F of s - 1; B and I of s wait for those of s + 1
// and for F of s; W waits for I of s. Activations are held from F to B or W. Errors: those of check(), and
// InvalidArgument when the ranks deadlock, naming what each of them waits for.
absl::StatusOr<Simulation> simulate(const Schedule& schedule, const Costs& costs = {},
                                    const Where& where = rank_and_step);

// State from `time` until the next entry.
struct HeldActivations {
  double time = 0;
  int activations = 0;     // Microbatches whose activations a rank holds, over its stages.
  std::int64_t bytes = 0;  // Bytes of these activations.
};

// Returns what a rank holds over time. A microbatch of a stage is held from the start of its forward pass to the end of
// its backward pass, or of its separate weight gradient. `stage_bytes` has the bytes of one microbatch for each stage
// of the model; if it is empty, bytes are 0.
std::vector<HeldActivations> held_over_time(const RankTimeline& rank, const std::vector<std::int64_t>& stage_bytes);

// Returns the entry with the most bytes, or with the most activations when bytes are not known; all 0 without work.
HeldActivations peak_held(const std::vector<HeldActivations>& held);

}  // namespace titan::pipeline
