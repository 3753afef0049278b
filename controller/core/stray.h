#pragma once

// What nodes say that does not fit this controller's records.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace titan::core {

using AttemptKey = std::pair<std::string, int>;  // Job uid, number.

// An attempt on a node that is not the present one of a live job: it holds its devices until it is gone.
struct Stray {
  std::string job;  // Full name as its launch file has it; may be empty.
  std::vector<int> ranks;
  int devices = 0;
  std::vector<int> device_indices;  // Those devices; empty: not known.
  std::vector<int> claimed;         // As the scheduler was told.
  int64_t start_time_ns = 0;
  int64_t step = 0;            // Last finished one.
  bool unknown = false;        // This store has no such job: listed and left alone.
  bool ended = false;          // And kept by its node, for the controller that knows the job.
  bool dismissed = false;      // An operator wants it gone,
  absl::Duration grace;        // and gives it so long to save.
  bool saving = false;         // Of a live job, and newer than this store's records: it saves before it is stopped,
  absl::Duration saves_until;  // and is waited for until then. Monotonic.
};

// An attempt's ranks on a node that was silent when they were given up: they may still run.
struct LeftBehind {
  std::string job;  // Full name.
  int ranks = 0;
  absl::Duration until;  // Monotonic. They have ended by then: ranks that hear of no controller save and leave.
  absl::Time until_wall;
  bool may_train = true;  // False: they were never started, or were seen to end. The node is to be told all the same.
};

// Under which the scheduler knows its devices.
inline std::string stray_owner(const AttemptKey& key) { return absl::StrCat("stray/", key.first, "/", key.second); }

}  // namespace titan::core
