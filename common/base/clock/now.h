#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace titan {

// Both clocks at one moment. Pure code receives this value instead of a clock.
struct Now {
  absl::Duration monotonic;  // Since an arbitrary start, for leases, deadlines and measurements.
  absl::Time wall;           // Wall-clock time, for people and records.
  int64_t wall_ns() const { return absl::ToUnixNanos(wall); }  // Since the Unix epoch.
};

}  // namespace titan
