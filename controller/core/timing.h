#pragma once

// Decides when periodic work and scheduling cycles are due, and detects pauses of this process.

#include <cstddef>

#include "absl/time/time.h"

namespace titan::core {

// Work that repeats at an interval, in the first step after each interval.
class Periodic {
 public:
  explicit Periodic(absl::Duration every) : every_(every) {}

  // Returns true if the work is due, and then begins the next interval.
  bool is_due(absl::Duration now) {
    if (now < next_) return false;
    next_ = now + every_;
    return true;
  }

 private:
  absl::Duration every_;
  absl::Duration next_ = absl::ZeroDuration();
};

// Decides when the next scheduling cycle may run. The first one waits for the nodes that the store knows.
class Cycles {
 public:
  void wait_until(absl::Duration time) { earliest_ = time; }
  absl::Duration earliest() const { return earliest_; }
  // True at `earliest()`, or as soon as all nodes have registered. Once true, it stays true.
  bool begin(absl::Duration now, bool all_registered);
  bool has_begun() const { return has_begun_; }

  // Begins the pause that belongs to a cycle. A cycle takes time in proportion to the number of nodes and jobs, and
  // many of them may arrive at once. The pause keeps all cycles together within a tenth of the time.
  void pause(absl::Duration now, size_t nodes_and_jobs);
  bool is_paused(absl::Duration now) const { return now < next_; }

  void request() { is_requested_ = true; }
  bool is_requested() const { return is_requested_; }
  void take_request() { is_requested_ = false; }

 private:
  absl::Duration earliest_;
  bool has_begun_ = false;
  absl::Duration next_ = absl::ZeroDuration();
  bool is_requested_ = false;
};

// Detects pauses of this process itself, on a suspended or starved machine. Nodes only seemed silent during a pause:
// their messages wait to be read.
class Pauses {
 public:
  explicit Pauses(absl::Duration lease);

  // The start counts as a tick, so that a pause before the first tick is detected, too.
  void start(absl::Duration now) { last_tick_ = awake_since_ = now; }
  // Returns how long this process was paused before this tick. Zero: it was not.
  absl::Duration tick(absl::Duration now);

  // True during a pause that no tick has noticed yet.
  bool is_paused(absl::Duration now) const { return now - last_tick_ > longest_tick_; }
  // Time since the last pause, or since the start.
  absl::Duration awake_for(absl::Duration now) const { return now - awake_since_; }

 private:
  absl::Duration longest_tick_;  // A longer time between two ticks is a pause.
  absl::Duration last_tick_ = absl::ZeroDuration();
  absl::Duration awake_since_ = absl::ZeroDuration();
};

}  // namespace titan::core
