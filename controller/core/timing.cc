#include "controller/core/timing.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace titan::core {
namespace {

// A cycle looks at all waiting jobs and shows what changed in their reasons. With thousands of nodes and jobs, of which
// many may arrive at once, cycles take no more than a tenth of the time.
constexpr size_t kFew = 64;
constexpr absl::Duration kPause = absl::Microseconds(10);

}  // namespace

bool Cycles::begin(absl::Duration now, bool all_registered) {
  has_begun_ = has_begun_ || now >= earliest_ || all_registered;
  return has_begun_;
}

void Cycles::pause(absl::Duration now, size_t nodes_and_jobs) {
  if (nodes_and_jobs <= kFew) return;
  next_ = now + std::min(absl::Milliseconds(200), kPause * static_cast<int64_t>(nodes_and_jobs));
}

Pauses::Pauses(absl::Duration lease) : longest_tick_(std::max(lease / 2, absl::Seconds(1))) {}

absl::Duration Pauses::tick(absl::Duration now) {
  const absl::Duration pause = now - std::exchange(last_tick_, now);
  if (pause <= longest_tick_) return absl::ZeroDuration();
  awake_since_ = now;
  return pause;
}

}  // namespace titan::core
