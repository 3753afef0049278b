#pragma once

// When to save, what to load and what to delete, as pure functions.

#include <cstdint>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::checkpoint {

enum class SaveDecision {
  kNo,
  kRegular,  // Checkpointer::save
  kLast,     // Checkpointer::save_last
};

struct StepEdge {
  int64_t step = 0;        // Just finished.
  int64_t last_step = 0;   // training.steps
  bool requested = false;  // "Save now" or "stop and save": a full checkpoint, whatever the interval.
};

// torchtitan's rule (first step if enabled, every interval, always the last) plus requests. Nothing when checkpoints
// are off or load_only is set.
SaveDecision decide_save(const config::Checkpoint& config, const StepEdge& edge);

struct StoredStep {
  int64_t step = 0;
  bool full = true;
  // Found steps may be damaged or belong to an abandoned branch beyond the step that was loaded, so newness is (trust,
  // step).
  enum Trust { kFound, kLoaded, kCommitted } trust = kFound;
};

// Steps to delete so that keep_latest_k stay (0: all stay), oldest first. The newest full one always stays.
std::vector<int64_t> steps_to_purge(std::vector<StoredStep> steps, int keep_latest_k);

}  // namespace titan::checkpoint
