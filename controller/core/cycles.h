#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace titan::core {

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

}  // namespace titan::core
