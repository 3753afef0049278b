#pragma once

#include <vector>

#include "prometheus/collectable.h"

namespace titan::metrics {

// This process as Prometheus' own clients describe theirs: processor time, memory, descriptors, when it began. What
// /proc does not say is left out.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace titan::metrics
