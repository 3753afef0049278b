#pragma once

// Decides when to save and which steps to delete, as pure functions.

#include <cstdint>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::checkpoint {

enum class SaveDecision {
  kNo,
  kRegular,  // Checkpointer::save
  kLast,     // Checkpointer::save_last
};

// The moment after a step, at which decide_save() decides.
struct StepEdge {
  int64_t step = 0;        // The step that just finished.
  int64_t last_step = 0;   // training.steps
  bool requested = false;  // "Save now" or "stop and save" was requested: a full checkpoint, whatever the interval.
};

// Applies torchtitan's rule (the first step if enabled, every interval, always the last), and saves on request. kNo if
// checkpoints are off or load_only is set.
SaveDecision decide_save(const config::CheckpointSection& config, const StepEdge& edge);

// A step in the folder, for steps_to_purge().
struct StoredStep {
  int64_t step = 0;
  bool full = true;
  // Found steps may be damaged, or belong to an abandoned branch beyond the loaded step. So steps are ordered by
  // (trust, step).
  enum Trust { kFound, kLoaded, kCommitted } trust = kFound;
};

// Returns the steps to delete so that keep_latest_k remain (0: all remain), in order of (trust, step). The last full
// step of this order always remains, in addition if need be.
std::vector<int64_t> steps_to_purge(std::vector<StoredStep> steps, int keep_latest_k);

}  // namespace titan::checkpoint
