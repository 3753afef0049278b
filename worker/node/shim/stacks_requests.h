#pragma once

// Takes the stacks of all ranks' threads when a client or a rank wants them, and reports the event "stacks" once they
// are there.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/node/shim/ranks.h"
#include "worker/node/shim/server.h"

namespace titan::shim {

// Times are monotonic nanoseconds.
struct StacksRequests {
  pid_t pid = 0;         // Of titan-stacks; 0: it does not run.
  int64_t taken_at = 0;  // When it was last known where the ranks are; 0: never.
  int64_t look_at = 0;   // When the beacons are looked at again.
};

inline constexpr int64_t kStacksTimeoutMilliseconds = 4000;

// Begins to take them; when that was done a moment ago, the event is sent at once. Errors: FailedPrecondition when no
// rank runs, and those of start_stacks().
absl::Status take_stacks(StacksRequests& requests, const std::vector<Rank>& ranks, Server& server,
                         const std::string& run_folder, int64_t patience_milliseconds);

// Takes stacks for ranks that a collective has failed: they wait to be looked at.
void check_stack_requests(StacksRequests& requests, std::vector<Rank>& ranks, Server& server, const Folders& folders);

// titan-stacks has ended: the ranks need not wait for it any longer.
void end_stacks(StacksRequests& requests, std::vector<Rank>& ranks, Server& server, const std::string& rank_folder,
                int wait_status);

}  // namespace titan::shim
