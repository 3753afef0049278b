#pragma once

#include <functional>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/io/http/http.h"

namespace titan::http {

struct RetryPolicy {
  int attempts = 8;                                // In a row that brought nothing.
  absl::Duration first_wait = absl::Seconds(0.5);  // Then twice as long each time, a quarter more or less by chance.
  absl::Duration longest_wait = absl::Seconds(30);
  absl::Duration longest_asked = absl::Seconds(600);  // Of what a server asks for by Retry-After.
  // Is told of waits that a person would wonder about, on the thread that waits.
  std::function<void(const absl::Status&, absl::Duration)> telling = nullptr;
};

// Waits unless somebody stops it: then false.
bool wait_for(absl::Duration duration, const std::stop_token& stop);

// Calls `attempt` until its status is not Unavailable, or `policy.attempts` calls in a row brought nothing.
// `brought` tells how much there is by now: a call after which it is more does not count.
absl::Status with_retries(const RetryPolicy& policy, const std::stop_token& stop,
                          const std::function<Outcome()>& attempt, const std::function<int64_t()>& brought);

}  // namespace titan::http
