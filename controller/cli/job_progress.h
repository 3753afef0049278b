#pragma once

// Estimates a job's pace, and shows its progress in a line at the bottom of the terminal.

#include <optional>

#include "absl/time/time.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Pace of a job. A value that is unknown, or has no meaning in the job's state, is unset.
struct Pace {
  std::optional<absl::Duration> elapsed;     // From its first attempt to now, or to its end.
  std::optional<absl::Duration> step;        // Approximate time of one step, by the last reported throughput.
  std::optional<absl::Duration> left;        // Until its last step, at that pace.
  std::optional<absl::Duration> since_step;  // While it trains: since the last reported step.
  bool stalled = false;                      // `since_step` is far longer than the time between two reports.
};

// Estimates a job's pace; pure. Expects a report every metrics.log_freq steps.
Pace pace_of(const v1::Job& job, absl::Time now);

// One line at the bottom of a terminal that shows how far a job is, and is redrawn with each change. Prints nothing
// where stderr is not such a terminal, and with -o json and yaml.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const v1::Job& job);
  // Removes the line, before something else is printed.
  void clear();

 private:
  const bool works_;
  bool is_there_ = false;
};

}  // namespace titan::cli
