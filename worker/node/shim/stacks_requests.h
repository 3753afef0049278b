#pragma once

// Captures the stacks of all ranks' threads when a client or a rank requests it, and reports the event "stacks" when
// done.

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
  pid_t pid = 0;         // Process id of titan-stacks. 0: it does not run.
  int64_t taken_at = 0;  // When stacks were last captured. 0: never.
  int64_t look_at = 0;   // When the beacons are checked next.
};

inline constexpr int64_t kStacksTimeoutMilliseconds = 4000;

// Starts a capture unless one runs. If one ended in the last 10 s, sends the event at once instead. Errors:
// FailedPrecondition if no rank runs, and those of start_stacks().
absl::Status take_stacks(StacksRequests& requests, const std::vector<Rank>& ranks, Server& server,
                         const std::string& run_folder, int64_t timeout_milliseconds);

// Captures stacks if a rank requests it. A rank whose collective has failed waits for the capture.
void check_stack_requests(StacksRequests& requests, std::vector<Rank>& ranks, Server& server, const Folders& folders);

// Call it when titan-stacks has ended. Releases the ranks that wait for it.
void end_stacks(StacksRequests& requests, std::vector<Rank>& ranks, Server& server, const std::string& rank_folder,
                int wait_status);

}  // namespace titan::shim
