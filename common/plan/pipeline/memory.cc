#include "common/plan/pipeline/memory.h"

#include <algorithm>
#include <tuple>

namespace titan::pipeline {

std::vector<Held> held_over_time(const RankTimeline& rank, const std::vector<std::int64_t>& stage_bytes) {
  std::vector<Held> changes;  // Of the moment, not sums yet.
  for (const TimedAction& timed : rank.actions) {
    const std::int64_t bytes = stage_bytes.empty() ? 0 : stage_bytes.at(timed.action.stage);
    if (timed.action.work == Work::kForward) changes.push_back({timed.start, 1, bytes});
    if (timed.action.work == Work::kBackward || timed.action.work == Work::kWeightGradient)
      changes.push_back({timed.end, -1, -bytes});
  }
  // What ends makes room for what begins at the same moment.
  std::stable_sort(changes.begin(), changes.end(), [](const Held& a, const Held& b) {
    return std::tie(a.time, a.activations) < std::tie(b.time, b.activations);
  });
  std::vector<Held> held;
  Held now;
  for (const Held& change : changes) {
    now = {change.time, now.activations + change.activations, now.bytes + change.bytes};
    if (!held.empty() && held.back().time == now.time) {
      held.back() = now;
    } else {
      held.push_back(now);
    }
  }
  return held;
}

Held most_held(const std::vector<Held>& held) {
  Held most;
  for (const Held& now : held) {
    if (std::tie(now.bytes, now.activations) > std::tie(most.bytes, most.activations)) most = now;
  }
  return most;
}

}  // namespace titan::pipeline
