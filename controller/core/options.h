#pragma once

// Settings that do not change during the life of a core.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace titan::core {

struct CoreOptions {
  absl::Duration lease = absl::Seconds(5);
  absl::Duration beat = absl::Seconds(1);
  // Limit to prepare a part of an attempt. Nodes give up earlier and say why.
  absl::Duration prepare_timeout = absl::Seconds(75);
  absl::Duration reserve_grace = absl::Seconds(60);  // How long a waiting job keeps its last devices and avoids nodes.
  int64_t events_kept = 10'000;                      // Per job and per node.
  int64_t kept_logs_bytes = int64_t{256} << 20;      // Limit for the ends of failed ranks' logs, all jobs together.
  absl::Duration keep_finished = absl::InfiniteDuration();  // Jobs that ended longer ago are deleted.
  int64_t default_time_limit_seconds = 0;                   // For jobs that give none. 0: no limit.
  std::string cluster;                                      // Id of the store.
  int64_t leader_epoch = 0;        // Sent with commands if several controllers can lead. 0: only one can.
  std::function<double()> jitter;  // Returns a number in [0, 1), for backoffs.
};

}  // namespace titan::core
