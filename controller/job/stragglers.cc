#include "controller/job/stragglers.h"

#include <algorithm>

namespace titan::job {

void Stragglers::see(int rank, int64_t steps, int64_t nanos, absl::Duration now) {
  if (rank < 0 || steps <= 0 || nanos < 0) return;
  if (static_cast<size_t>(rank) >= ranks_.size()) ranks_.resize(rank + 1);
  if (!began_) began_ = now;
  Rank& seen = ranks_[rank];
  const int64_t made = steps - seen.steps;
  const bool goes_on = seen.steps > 0 && made >= 0 && nanos >= seen.nanos && now - seen.seen <= kMaxSilence;
  if (goes_on && made > 0) {
    seen.step_nanos.push_back(static_cast<double>(nanos - seen.nanos) / static_cast<double>(made));
    seen.steps_made += made;
    max_steps_ = std::max(max_steps_, seen.steps_made);
  }
  seen.steps = steps;
  seen.nanos = nanos;
  seen.seen = now;
}

std::vector<Stragglers::Change> Stragglers::judge(absl::Duration now, int ranks, int stages) {
  std::vector<Change> changes;
  if (!began_ || now - *began_ < kWindow || max_steps_ < kStepsAWindow) return changes;
  const int known = static_cast<int>(ranks_.size());
  const int of_a_stage = std::max(1, ranks / std::max(1, stages));
  for (int first = 0; first < known; first += of_a_stage) {
    const int last = std::min(known, first + of_a_stage);
    const std::vector<Own> own = measured(first, last);  // Fastest first.
    std::vector<bool> compared(last - first, false);
    for (size_t place = 0; own.size() > 1 && place < own.size(); ++place) {
      const size_t median = (own.size() - 2) / 2;  // Among the other ranks.
      const double peers = own[median < place ? median : median + 1].nanos;
      const double mine = own[place].nanos;
      const bool alike = mine - peers < absl::ToDoubleNanoseconds(kMinDifference);
      const Slow figures = {alike ? 1 : peers / mine, absl::Nanoseconds(mine), absl::Nanoseconds(peers)};
      compared[own[place].rank - first] = true;
      if (const auto change = take(own[place].rank, figures)) changes.push_back(*change);
    }
    for (int rank = first; rank < last; ++rank) {
      if (!compared[rank - first]) ranks_[rank].low = ranks_[rank].fair = 0;
    }
  }
  for (Rank& rank : ranks_) {
    rank.steps_made = 0;
    rank.step_nanos.clear();
  }
  began_ = now;
  max_steps_ = 0;
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.rank < b.rank; });
  return changes;
}

// Returns the ranks in [first, last) that are known for enough of the window, fastest first.
std::vector<Stragglers::Own> Stragglers::measured(int first, int last) {
  std::vector<Own> own;
  for (int rank = first; rank < last; ++rank) {
    Rank& seen = ranks_[rank];
    if (2 * seen.steps_made <= max_steps_) continue;
    const auto middle = seen.step_nanos.begin() + static_cast<int64_t>(seen.step_nanos.size() / 2);
    std::nth_element(seen.step_nanos.begin(), middle, seen.step_nanos.end());
    own.push_back({rank, *middle});
  }
  std::sort(own.begin(), own.end(), [](const Own& a, const Own& b) { return a.nanos < b.nanos; });
  return own;
}

std::optional<Stragglers::Change> Stragglers::take(int rank, const Slow& figures) {
  Rank& seen = ranks_[rank];
  seen.low = figures.score < kSlowScore ? seen.low + 1 : 0;
  seen.fair = figures.score >= kPaceScore ? seen.fair + 1 : 0;
  const auto known = slow_.find(rank);
  if (known == slow_.end()) {
    if (seen.low < kWindowsToReport) return std::nullopt;
    slow_[rank] = figures;
    return Change{rank, true, figures};
  }
  known->second = figures;
  if (seen.fair < kWindowsToReport) return std::nullopt;
  slow_.erase(known);
  return Change{rank, false, figures};
}

}  // namespace titan::job
