#pragma once

// Attempts on nodes that do not fit this controller's records.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace titan::core {

using AttemptKey = std::pair<std::string, int>;  // Job uid and attempt number.

// An attempt on a node that is not the current one of a live job, or whose part there was given up. It holds its
// devices until it is gone.
struct Stray {
  std::string job;  // Full name from its launch file. May be empty.
  std::vector<int> ranks;
  int devices = 0;
  std::vector<int> device_indices;  // Indices of these devices. Empty: not known.
  std::vector<int> claimed;         // Devices that are claimed in the scheduler for it.
  int64_t start_time_ns = 0;
  int64_t step = 0;        // Last finished step.
  bool unknown = false;    // This store has no such job: the attempt is listed and left alone.
  bool ended = false;      // It has ended, and its node keeps it for the controller that knows the job.
  bool dismissed = false;  // An operator wants it stopped.
  absl::Duration grace;    // Time that the operator gives it to save.
  bool saving = false;  // It belongs to a live job and is newer than this store's records, so it saves before it stops.
  absl::Duration saves_until;  // Monotonic. The job waits for it until then.
};

// An attempt's ranks on a node that was silent when they were given up. They may still run.
struct LeftBehind {
  std::string job;  // Full name.
  int ranks = 0;
  absl::Duration until;  // Monotonic. They have ended by then: ranks that hear of no controller save and leave.
  absl::Time until_wall;
  bool may_train = true;  // False: they never started or have ended, but the node must still get a Stop.
};

// Returns the owner's name under which the stray's devices are claimed in the scheduler.
inline std::string stray_owner(const AttemptKey& key) { return absl::StrCat("stray/", key.first, "/", key.second); }

}  // namespace titan::core
