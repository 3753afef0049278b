#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace titan {

// Both clocks at one moment. Pure code is given it in place of a clock.
struct Now {
  absl::Duration monotonic;  // Since an arbitrary start; for leases, deadlines and measuring.
  absl::Time wall;           // For people and records.
  int64_t wall_ns() const { return absl::ToUnixNanos(wall); }
};

}  // namespace titan
