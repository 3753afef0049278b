#pragma once

// Finds the slow ranks of an attempt: those whose own time per step is much longer than their peers'.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace titan::job {

// Compares ranks over windows. The steps of a rank between two calls of see() have a mean, and its own time in a window
// is the median of these means: a pause affects only one of them. A rank's score is the median of its peers' own times
// divided by its own time, at most 1. For an even number of peers the lower median counts, so that half of the ranks
// may be slow, and of two ranks the faster one is the measure. A rank that scores below kSlowScore in kWindowsToReport
// windows in a row is slow until it has scored at least kPaceScore as often. A window in which nothing is known of the
// rank breaks either row and changes nothing else.
class Stragglers {
 public:
  // A window lasts longer until kStepsAWindow steps were made.
  static constexpr absl::Duration kWindow = absl::Seconds(10);
  static constexpr int64_t kStepsAWindow = 5;
  static constexpr double kSlowScore = 0.75;
  static constexpr double kPaceScore = 0.85;
  static constexpr int kWindowsToReport = 3;
  // Per step. A smaller difference is within the cost of one log line.
  static constexpr absl::Duration kMinDifference = absl::Milliseconds(1);

  // A rank that was not seen for longer starts over: that time belongs to no single window.
  static constexpr absl::Duration kMaxSilence = absl::Seconds(5);

  struct Slow {
    double score = 1;      // In the newest window, like the others.
    absl::Duration own;    // Own time per step.
    absl::Duration peers;  // Median of its peers' own times.
  };
  struct Change {
    int rank = 0;
    bool slow = false;  // False: it has recovered.
    Slow figures;
  };

  // Takes a rank's totals since the attempt began: its steps, and their own time in nanoseconds.
  void see(int rank, int64_t steps, int64_t nanos, absl::Duration now);

  // Returns the ranks whose state changed, by rank. Compares nobody before the window is over. The attempt's `ranks`
  // form `stages` equal runs, the stages of a pipeline. Ranks of one stage are peers.
  std::vector<Change> judge(absl::Duration now, int ranks, int stages);

  // Slow ranks, by rank.
  const std::map<int, Slow>& slow() const { return slow_; }

 private:
  struct Rank {
    int64_t steps = 0, nanos = 0;  // Newest values.
    absl::Duration seen;
    int64_t steps_made = 0;          // Steps in the window.
    std::vector<double> step_nanos;  // Mean step of each interval in the window.
    int low = 0;                     // Windows in a row below kSlowScore.
    int fair = 0;                    // Windows in a row at kPaceScore or above.
  };
  struct Own {
    int rank = 0;
    double nanos = 0;  // Per step.
  };

  std::vector<Own> measured(int first, int last);
  std::optional<Change> take(int rank, const Slow& figures);

  std::vector<Rank> ranks_;  // Indexed by rank.
  std::map<int, Slow> slow_;
  std::optional<absl::Duration> began_;  // Start of the window.
  int64_t max_steps_ = 0;                // Most steps of one rank in the window.
};

}  // namespace titan::job
