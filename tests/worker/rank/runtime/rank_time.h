#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace titan::testing {

// Simulates a rank's work by waits, in microseconds since `epoch`. A busy machine ends a wait late. Later waits are
// shortened by that lateness (but not by time that the program under test waited), here and, if messages carry
// `planned` and `overslept`, on other ranks. So lateness does not add up along a chain of ranks.
struct RankTime {
  using Clock = std::chrono::steady_clock;

  Clock::time_point epoch = Clock::now();  // The same on all ranks.
  double planned = 0;                      // Time of the current work if every wait had ended on time.
  double overslept = 0;                    // How much later than `planned` it is.

  double now() const { return std::chrono::duration<double, std::micro>(Clock::now() - epoch).count(); }

  // Adopts the times of a message from another rank.
  void take(double others_planned, double others_overslept) {
    planned = std::max(planned, others_planned);
    overslept = std::max(overslept, others_overslept);
  }

  void work(double length) {
    planned += length;
    sleep_until(std::max(planned, now() + length - overslept));
  }

  // Waits for a message that arrives at `time`.
  void arrive(double time) {
    planned = std::max(planned, time);
    sleep_until(planned);
  }

 private:
  void sleep_until(double end) {
    const double wanted = std::max(end, now());
    std::this_thread::sleep_until(epoch + std::chrono::microseconds(static_cast<int64_t>(wanted)));
    overslept = std::min(std::max(0.0, now() - planned), overslept + now() - wanted);
  }
};

// Raises `maximum` to `value` if that is larger; several threads may call it.
inline void raise(std::atomic<int64_t>& maximum, int64_t value) {
  for (int64_t seen = maximum; value > seen && !maximum.compare_exchange_weak(seen, value);) continue;
}

}  // namespace titan::testing
