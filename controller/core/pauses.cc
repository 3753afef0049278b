#include "controller/core/pauses.h"

#include <algorithm>
#include <utility>

#include "common/base/testing/planted.h"

namespace titan::core {

Pauses::Pauses(absl::Duration lease) : longest_tick_(std::max(lease / 2, absl::Seconds(1))) {}

absl::Duration Pauses::tick(absl::Duration now) {
  const absl::Duration pause = now - std::exchange(last_tick_, now);
  if (testing::planted(testing::Bug::kOwnPauseIsTheirSilence)) return absl::ZeroDuration();
  if (pause <= longest_tick_) return absl::ZeroDuration();
  awake_since_ = now;
  return pause;
}

}  // namespace titan::core
