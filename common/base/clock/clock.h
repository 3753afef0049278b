#pragma once

#include "absl/time/time.h"

namespace titan {

// Time comes by constructor, so that tests can hold it still.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time now() const = 0;            // Wall clock: for people and records.
  virtual absl::Duration monotonic() const = 0;  // Since an arbitrary start; for leases, deadlines and measuring.
};

// The machine's clocks. Never destroyed.
const Clock& system_clock();

// Stands still until advanced. Both clocks move together. Thread-safe for one writer.
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
