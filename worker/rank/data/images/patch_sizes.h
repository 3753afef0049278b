#pragma once

// Shared parts of the rules for the sizes of images that are cut into patches.

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/rank/data/images/patches.h"

namespace titan::images {

inline constexpr double kMaxSideRatio = 200;  // The longer side, divided by the shorter one.

// Returns the error for an image that is dropped.
inline absl::Status unsuitable(ImageSize size, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("an image of ", size.width, " x ", size.height, " pixels cannot be cut into patches: ", why));
}

// Returns Python's round(length / side) * side: halves go to the even number.
inline int64_t round_to_multiple(int length, int64_t side) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(length) / static_cast<double>(side))) * side;
}

}  // namespace titan::images
