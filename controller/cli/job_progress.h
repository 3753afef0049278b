#pragma once

// Estimates a job's pace, and shows its progress in a line at the bottom of the terminal.

#include <optional>

#include "absl/time/time.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// How fast a job is. What is not known, or has no meaning in the job's state, is not set.
struct Pace {
  std::optional<absl::Duration> elapsed;     // From its first attempt to now, or to its end.
  std::optional<absl::Duration> step;        // One step takes about this long, by the last reported throughput.
  std::optional<absl::Duration> left;        // Until its last step, at that pace.
  std::optional<absl::Duration> since_step;  // While it trains: since the last step that was reported.
  bool stalled = false;                      // That is far longer than between two reports.
};

// Pure. Steps are reported each metrics.log_freq of them.
Pace pace_of(const v1::Job& job, absl::Time now);

// One line at the bottom of a terminal that shows how far a job is, and is written over with each change. Nothing where
// stderr is not a terminal that can do so, and with -o json and yaml.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const v1::Job& job);
  // Before something else is printed.
  void clear();

 private:
  const bool works_;
  bool is_there_ = false;
};

}  // namespace titan::cli
