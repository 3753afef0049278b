#include "controller/job/ettr.h"

#include <algorithm>

namespace titan::job {
namespace {

constexpr double kNanos = 1e9;

}  // namespace

double ettr(const JobRecord& record, const std::vector<std::shared_ptr<const AttemptRecord>>& attempts,
            int64_t now_ns) {
  if (attempts.empty()) return 1;
  const int64_t end_ns = record.end_time_ns != 0 ? record.end_time_ns : now_ns;
  const double total = static_cast<double>(end_ns - attempts.front()->start_time_ns) / kNanos;
  if (total <= 0) return 1;
  double lost = 0;
  for (const auto& attempt : attempts) {
    for (const auto& [phase, seconds] : attempt->phase_seconds) lost += seconds;
  }
  return std::clamp(1 - lost / total, 0.0, 1.0);
}

}  // namespace titan::job
