#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/pipeline/simulator.h"

namespace titan::pipeline {

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
