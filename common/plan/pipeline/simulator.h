#pragma once

// Simulates a schedule: when each rank does what, how long it waits, and which activations it holds meanwhile.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/pipeline/schedule.h"

namespace titan::pipeline {

// Time of one piece of work of one stage; B takes input_gradient + weight_gradient.
struct Costs {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double transfer = 0;         // Between stages of different ranks; the sender works on meanwhile.
  double reduce = 0;           // Of one stage's weight gradients.
  bool pairs_overlap = false;  // The two halves of a paired step run at the same time instead of one after the other.
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
  double busy = 0;           // Time in which it works; overlapped work counts once.
  double bubble = 0;         // 1 - busy / makespan.
  int peak_activations = 0;  // Most microbatches whose activations it holds at once, over its stages.
  std::map<int, int> peak_by_stage;
};

struct Simulation {
  double makespan = 0;
  double bubble = 0;  // Share of all ranks' time in which they wait.
  std::vector<RankTimeline> ranks;
};

// Runs a schedule against the rules of its data: F of stage s waits for F of s - 1, B and I of s for those of s + 1 and
// the own F, W for the own I; activations live from F to B or W. Errors: those of check(), and InvalidArgument when the
// ranks wait for each other forever, naming what each of them waits for.
absl::StatusOr<Simulation> simulate(const Schedule& schedule, const Costs& costs = {},
                                    const Where& where = rank_and_step);

// From `time` on, until the next entry.
struct Held {
  double time = 0;
  int activations = 0;     // Microbatches whose activations a rank holds, over its stages.
  std::int64_t bytes = 0;  // Of them.
};

// What a rank holds over time: a microbatch of a stage from the begin of its forward pass to the end of its backward
// pass, or of its weight gradient when that comes apart. `stage_bytes`: of one microbatch, for each stage of the model;
// empty: not known, and bytes are 0.
std::vector<Held> held_over_time(const RankTimeline& rank, const std::vector<std::int64_t>& stage_bytes);

// The entry with the most bytes, or the most activations when no bytes are known. All 0 for a rank without work.
Held most_held(const std::vector<Held>& held);

}  // namespace titan::pipeline
