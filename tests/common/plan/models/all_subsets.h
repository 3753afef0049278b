#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/plan/models/pareto.h"

namespace titan::testing {

// Returns the most FLOPs that any subset of `items` within `bytes` saves.
inline double best_of_all_subsets(const std::vector<models::KnapsackItem>& items, int64_t bytes) {
  double best = 0;
  for (size_t subset = 0; subset < (size_t{1} << items.size()); ++subset) {
    models::KnapsackItem sum;
    for (size_t i = 0; i < items.size(); ++i) {
      if ((subset >> i & 1) == 0) continue;
      sum.bytes += items[i].bytes;
      sum.flops += items[i].flops;
    }
    if (sum.bytes <= bytes) best = std::max(best, sum.flops);
  }
  return best;
}

}  // namespace titan::testing
