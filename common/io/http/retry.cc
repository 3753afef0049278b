#include "common/io/http/retry.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"

namespace titan::http {
namespace {

constexpr absl::Duration kNotifyAfter = absl::Milliseconds(900);

// Spreads out the retries of clients that were rejected at the same time.
double jitter() {
  thread_local std::minstd_rand generator(std::random_device{}());
  return std::uniform_real_distribution<double>(0.75, 1.25)(generator);
}

absl::Status gave_up(const absl::Status& last, int attempts) {
  return absl::UnavailableError(absl::StrCat(last.message(), " (tried ", attempts, " times)"));
}

}  // namespace

bool wait_for(absl::Duration duration, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, absl::ToChronoNanoseconds(duration), [] { return false; });
  return !stop.stop_requested();
}

absl::Status with_retries(const RetryPolicy& policy, const std::stop_token& stop,
                          const std::function<Outcome()>& attempt, const std::function<int64_t()>& brought) {
  absl::Duration wait = policy.first_wait;
  for (int failed = 0;;) {
    const int64_t before = brought();
    const Outcome outcome = attempt();
    if (!absl::IsUnavailable(outcome.status)) return outcome.status;
    if (brought() > before) failed = 0, wait = policy.first_wait;
    if (++failed >= policy.attempts) return gave_up(outcome.status, failed);
    const absl::Duration asked = std::min(outcome.retry_after.value_or(absl::ZeroDuration()), policy.max_retry_after);
    const absl::Duration pause = std::max(asked, wait * jitter());
    if (policy.on_retry && pause >= kNotifyAfter) policy.on_retry(outcome.status, pause);
    if (!wait_for(pause, stop)) return absl::CancelledError("interrupted");
    wait = std::min(wait * 2, policy.max_backoff);
  }
}

}  // namespace titan::http
