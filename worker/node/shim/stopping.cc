#include "worker/node/shim/stopping.h"

#include <signal.h>

#include <algorithm>

#include "worker/node/shim/process.h"

namespace titan::shim {

void give_reason(Stopping& stopping, const std::string& reason) {
  if (stopping.reason.empty()) stopping.reason = reason;
}

void stop_ranks(Stopping& stopping, std::vector<Rank>& ranks, const StopOptions& options, const std::string& folder) {
  if (options.grace_milliseconds <= 0) return kill_ranks(stopping, ranks, stopping.reason);
  const int64_t kill_at = monotonic_nanos() + options.grace_milliseconds * kMilli;
  stopping.kill_at = stopping.kill_at == 0 ? kill_at : std::min(stopping.kill_at, kill_at);
  if (options.save) return order(ranks, rank_protocol::BeaconCommand::kStopAndSave, folder);
  for (const Rank& rank : ranks) {
    if (rank.running) ::kill(rank.process.pid, SIGTERM);
  }
}

void kill_ranks(Stopping& stopping, const std::vector<Rank>& ranks, const std::string& reason) {
  give_reason(stopping, reason);
  stopping.killed = true;
  for (const Rank& rank : ranks) {
    if (rank.running) ::kill(-rank.process.pid, SIGKILL);
  }
}

void renew_lease(Stopping& stopping, double timeout_seconds, int64_t silence_nanoseconds) {
  stopping.orphan_at = monotonic_nanos() - silence_nanoseconds + static_cast<int64_t>(timeout_seconds * kSecond);
}

bool is_orphaned(const Stopping& stopping, int64_t now) { return now >= stopping.orphan_at && stopping.reason.empty(); }

}  // namespace titan::shim
