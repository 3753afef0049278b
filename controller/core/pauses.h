#pragma once

#include "absl/time/time.h"

namespace titan::core {

// Recognizes that this process itself stood still, on a suspended or starved machine: what seemed to be the silence of
// the nodes was its own, and their messages still wait to be read.
class Pauses {
 public:
  explicit Pauses(absl::Duration lease);

  // The start counts as a tick, so that a pause before the first tick is recognized, too.
  void start(absl::Duration now) { last_tick_ = awake_since_ = now; }
  // Returns how long this process stood still before this tick; zero: it did not.
  absl::Duration tick(absl::Duration now);

  bool is_paused(absl::Duration now) const { return now - last_tick_ > longest_tick_; }  // No tick has come yet.
  absl::Duration awake_for(absl::Duration now) const {
    return now - awake_since_;
  }  // Since the last pause, or the start.

 private:
  absl::Duration longest_tick_;  // More between two ticks is a pause.
  absl::Duration last_tick_ = absl::ZeroDuration();
  absl::Duration awake_since_ = absl::ZeroDuration();
};

}  // namespace titan::core
