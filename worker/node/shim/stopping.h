#pragma once

// Ends an attempt's ranks. They save and exit, or get SIGTERM. Those that remain after the grace period are killed.

#include <cstdint>
#include <string>
#include <vector>

#include "worker/node/shim/ranks.h"

namespace titan::shim {

// Why and when the ranks are to end. Times are monotonic nanoseconds.
struct Stopping {
  std::string reason;     // Reason of the first stop. Empty: the attempt has not been stopped.
  int64_t kill_at = 0;    // When the ranks are killed. 0: not planned.
  int64_t orphan_at = 0;  // When the attempt becomes an orphan unless the lease is renewed.
  bool killed = false;    // This shim has killed its ranks.
};

// How the ranks are stopped: with `save` by the beacon's command, otherwise by SIGTERM. Without a grace
// period they are killed at once. On SIGTERM titan-rank saves, too.
struct StopOptions {
  bool save = false;
  int64_t grace_milliseconds = 0;
};

// Records why the attempt ends. An earlier reason stays.
void give_reason(Stopping& stopping, const std::string& reason);

// Stops the running ranks. A later stop never extends the time of an earlier one. `folder`: where ranks write.
void stop_ranks(Stopping& stopping, std::vector<Rank>& ranks, const StopOptions& options, const std::string& folder);

// Sends SIGKILL to the process groups of all running ranks.
void kill_ranks(Stopping& stopping, const std::vector<Rank>& ranks, const std::string& reason);

// Postpones the moment at which the attempt becomes an orphan to `timeout_seconds` after the last contact, which was
// `silence_nanoseconds` ago.
void renew_lease(Stopping& stopping, double timeout_seconds, int64_t silence_nanoseconds);

// Returns whether the lease was not renewed in time and the attempt is not already ending.
bool is_orphaned(const Stopping& stopping, int64_t now);

}  // namespace titan::shim
