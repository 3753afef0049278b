#pragma once

// Decides when something is due: periodic work, the scheduler's next cycle, and what to make of a pause of this process
// itself.

#include <cstddef>

#include "absl/time/time.h"

namespace titan::core {

// Something that is done about every so often, in the first step after the time is over.
class Periodic {
 public:
  explicit Periodic(absl::Duration every) : every_(every) {}

  // True: do it now. The next time counts from now on.
  bool is_due(absl::Duration now) {
    if (now < next_) return false;
    next_ = now + every_;
    return true;
  }

 private:
  absl::Duration every_;
  absl::Duration next_ = absl::ZeroDuration();
};

// Decides when the scheduler's next cycle may run. The first cycle waits for the nodes that the store knows.
class Cycles {
 public:
  void wait_until(absl::Duration time) { earliest_ = time; }
  absl::Duration earliest() const { return earliest_; }
  // Returns true from then on, or as soon as all nodes have registered; once true, it stays true.
  bool begin(absl::Duration now, bool all_registered);
  bool has_begun() const { return has_begun_; }

  // Call it after each cycle. A cycle takes time in proportion to the number of nodes and jobs, and many of them may
  // arrive at once: the pause keeps all cycles together within a tenth of the time.
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
