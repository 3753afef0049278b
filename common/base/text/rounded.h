#pragma once

#include <string>

#include "absl/time/time.h"

namespace titan {

// A duration for people: "9.3s", and "250ms" of less than a second.
inline std::string rounded(absl::Duration duration) {
  const absl::Duration unit = duration < absl::Seconds(1) ? absl::Milliseconds(1) : absl::Milliseconds(100);
  return absl::FormatDuration(absl::Floor(duration + unit / 2, unit));
}

}  // namespace titan
