#pragma once

#include "absl/time/time.h"

namespace titan {

// A source of time. Classes receive it by constructor, so that tests can control it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time now() const = 0;            // Wall-clock time, for people and records.
  virtual absl::Duration monotonic() const = 0;  // Since an arbitrary start, for leases, deadlines and measurements.
};

// Returns the machine's clocks. The object is never destroyed.
const Clock& system_clock();

// A clock for tests. It stands still until advanced, and both clocks move together. Advancing is not synchronized with
// readers in other threads.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'700'000'000)) : start_(start) {}
  absl::Time now() const override { return start_ + elapsed_; }
  absl::Duration monotonic() const override { return elapsed_; }
  void advance(absl::Duration by) { elapsed_ += by; }

 private:
  absl::Time start_;
  absl::Duration elapsed_ = absl::ZeroDuration();
};

}  // namespace titan
