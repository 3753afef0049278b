#pragma once

// Which ranks of an attempt are slow: those whose own part of a step takes much longer than their peers'.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace titan::job {

// Ranks are compared over windows. What a rank does from one look at it to the next has a mean step, and its own time
// in a window is the median of these: a pause in between counts for one of them. A rank's score is the median of its
// peers' own time over its own, at most 1; of an even number of peers the lower median counts, so that half of the
// ranks may be slow, and of two the faster one is the measure. A rank that scores below kSlowScore in kWindowsToTell
// windows in a row is slow until it has scored kPaceScore as often. A window in which nothing is known of it breaks
// either row and changes nothing else.
class Stragglers {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);  // Longer, until kStepsAWindow steps were made.
  static constexpr int64_t kStepsAWindow = 5;
  static constexpr double kSlowScore = 0.75;
  static constexpr double kPaceScore = 0.85;
  static constexpr int kWindowsToTell = 3;
  // A step. Less than this is what a line of a log costs.
  static constexpr absl::Duration kLeastDifference = absl::Milliseconds(1);

  // Who was not seen for longer is looked at anew: what it did meanwhile is not of one window.
  static constexpr absl::Duration kLongestSilence = absl::Seconds(5);

  struct Slow {
    double score = 1;  // In the newest window, as are the others.
    absl::Duration own;
    absl::Duration peers;
  };
  struct Change {
    int rank = 0;
    bool slow = false;  // Else it has recovered.
    Slow figures;
  };

  // What a rank has measured so far, since the attempt began: steps, and the sum of its own parts of them.
  void see(int rank, int64_t steps, int64_t nanos, absl::Duration now);

  // Whose state has changed, by rank; compares nobody before the window is over. `ranks` of the attempt are in `stages`
  // equal runs, the stages of a pipeline.
  std::vector<Change> judge(absl::Duration now, int ranks, int stages);

  // By rank.
  const std::map<int, Slow>& slow() const { return slow_; }

 private:
  struct Rank {
    int64_t steps = 0, nanos = 0;  // Newest.
    absl::Duration seen;
    int64_t steps_made = 0;          // In the window,
    std::vector<double> step_nanos;  // and the mean step of each stretch of it.
    int low = 0;                     // Windows in a row below kSlowScore,
    int fair = 0;                    // and from kPaceScore on.
  };
  struct Own {
    int rank = 0;
    double nanos = 0;  // A step.
  };

  std::vector<Own> measured(int first, int last);
  std::optional<Change> take(int rank, const Slow& figures);

  std::vector<Rank> ranks_;  // Those that have measured something.
  std::map<int, Slow> slow_;
  std::optional<absl::Duration> began_;  // The window.
  int64_t most_ = 0;                     // Steps of one rank in it.
};

}  // namespace titan::job
