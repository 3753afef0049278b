#pragma once

#include <functional>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/io/http/http.h"

namespace titan::http {

struct RetryPolicy {
  int attempts = 8;                                // Attempts in a row without progress.
  absl::Duration first_wait = absl::Seconds(0.5);  // Doubled each time, with random jitter of 25%.
  absl::Duration max_backoff = absl::Seconds(30);
  absl::Duration max_retry_after = absl::Seconds(600);  // Limit of the wait that a server requests by Retry-After.
  // Called on the waiting thread before waits of 0.9 seconds or more.
  std::function<void(const absl::Status&, absl::Duration)> on_retry = nullptr;
};

// Waits for `duration`. Returns false when `stop` is requested.
bool wait_for(absl::Duration duration, const std::stop_token& stop);

// Calls `attempt` until its status is not Unavailable, or `policy.attempts` calls in a row made no progress. `brought`
// returns the amount received so far; a failed call that increased it starts a new row. Returns Cancelled when `stop`
// is requested during a wait.
absl::Status with_retries(const RetryPolicy& policy, const std::stop_token& stop,
                          const std::function<Outcome()>& attempt, const std::function<int64_t()>& brought);

}  // namespace titan::http
