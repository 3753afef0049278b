#include "worker/rank/checkpoint/steps/policy.h"

#include <algorithm>
#include <tuple>

namespace titan::checkpoint {

SaveDecision decide_save(const config::CheckpointSection& config, const StepEdge& edge) {
  if (!config.enable || config.load_only) return SaveDecision::kNo;
  if (edge.step >= edge.last_step) return SaveDecision::kLast;
  if (edge.requested) return SaveDecision::kRegular;
  if (edge.step == 1 && config.enable_first_step_checkpoint) return SaveDecision::kRegular;
  return edge.step > 0 && edge.step % config.interval == 0 ? SaveDecision::kRegular : SaveDecision::kNo;
}

std::vector<int64_t> steps_to_purge(std::vector<StoredStep> steps, int keep_latest_k) {
  std::vector<int64_t> doomed;
  if (keep_latest_k <= 0 || steps.size() <= static_cast<size_t>(keep_latest_k)) return doomed;
  std::sort(steps.begin(), steps.end(), [](const StoredStep& a, const StoredStep& b) {
    return std::tie(a.trust, a.step) < std::tie(b.trust, b.step);
  });
  const auto newest_full = std::find_if(steps.rbegin(), steps.rend(), [](const StoredStep& s) { return s.full; });
  for (size_t i = 0; i + static_cast<size_t>(keep_latest_k) < steps.size(); ++i) {
    if (newest_full == steps.rend() || &steps[i] != &*newest_full) doomed.push_back(steps[i].step);
  }
  return doomed;
}

}  // namespace titan::checkpoint
