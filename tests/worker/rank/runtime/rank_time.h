#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace titan::testing {

// Work of one rank as waits, in microseconds since `epoch`. A busy machine ends a wait late; what it was late by (and
// nothing else: not what the program under test waited for) is taken off the waits that follow, here and, when messages
// carry `planned` and `overslept` along, on other ranks. So lateness does not add up along a chain of ranks.
struct RankTime {
  using Clock = std::chrono::steady_clock;

  Clock::time_point epoch = Clock::now();  // The same on all ranks.
  double planned = 0;                      // Where the present work would be had every wait ended in time.
  double overslept = 0;                    // How much later it is for this reason.

  double now() const { return std::chrono::duration<double, std::micro>(Clock::now() - epoch).count(); }

  // Of what comes from another rank.
  void take(double others_planned, double others_overslept) {
    planned = std::max(planned, others_planned);
    overslept = std::max(overslept, others_overslept);
  }

  void work(double length) {
    planned += length;
    sleep_until(std::max(planned, now() + length - overslept));
  }

  // Waits for what arrives at `time`.
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

// The greatest of what several threads say.
inline void raise(std::atomic<int64_t>& most, int64_t value) {
  for (int64_t seen = most; value > seen && !most.compare_exchange_weak(seen, value);) continue;
}

}  // namespace titan::testing
