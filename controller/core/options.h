#pragma once

// What does not change while a core lives.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace titan::core {

struct Options {
  absl::Duration lease = absl::Seconds(5);
  absl::Duration beat = absl::Seconds(1);
  absl::Duration prepare_timeout =
      absl::Seconds(75);                             // For a part of an attempt; nodes give up after 60 s and say why.
  absl::Duration reserve_grace = absl::Seconds(60);  // For the devices that a recovering job waits to come back to.
  int64_t events_kept = 10'000;                      // Per job and per node.
  int64_t kept_logs_bytes = int64_t{256} << 20;      // Of the ends of failed ranks' logs, all jobs together.
  absl::Duration keep_finished = absl::InfiniteDuration();  // Jobs that ended longer ago are deleted.
  int64_t default_time_limit_seconds = 0;                   // Of jobs that give none; 0: none.
  std::string cluster;                                      // The store's id.
  int64_t leader_epoch = 0;        // That commands carry where another controller may lead one day; 0: none may.
  std::function<double()> jitter;  // In [0, 1), for backoffs.
};

}  // namespace titan::core
