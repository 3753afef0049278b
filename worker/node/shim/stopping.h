#pragma once

// Ends an attempt's ranks: they save and leave, or get SIGTERM, and what is left of them after the grace is killed.

#include <cstdint>
#include <string>
#include <vector>

#include "worker/node/shim/ranks.h"

namespace titan::shim {

// Why and when the ranks are to end. Times are monotonic nanoseconds.
struct Stopping {
  std::string reason;     // The reason of the first stop; empty: nobody has stopped the attempt.
  int64_t kill_at = 0;    // 0: not planned.
  int64_t orphan_at = 0;  // Nobody renewed the lease until then.
  bool killed = false;    // This shim has killed its ranks.
};

// How the ranks are stopped: with `save` they write a checkpoint first, else they get SIGTERM. Without a grace they are
// killed at once.
struct StopOptions {
  bool save = false;
  int64_t grace_milliseconds = 0;
};

// Notes why the attempt ends; an earlier reason stays.
void give_reason(Stopping& stopping, const std::string& reason);

// Stops the ranks that run. Stopping them again never gives them more time. `folder`: where ranks write.
void stop_ranks(Stopping& stopping, std::vector<Rank>& ranks, const StopOptions& options, const std::string& folder);

// SIGKILL to the process groups of all ranks that run.
void kill_ranks(Stopping& stopping, const std::vector<Rank>& ranks, const std::string& reason);

// Moves on the moment at which the attempt is an orphan: `timeout_seconds` after somebody was last heard of, which was
// `silence_nanoseconds` ago.
void renew_lease(Stopping& stopping, double timeout_seconds, int64_t silence_nanoseconds);

// Whether nobody has renewed the lease in time, and the attempt is not ending anyway.
bool is_orphaned(const Stopping& stopping, int64_t now);

}  // namespace titan::shim
