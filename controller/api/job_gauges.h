#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/service/metrics/metrics.h"
#include "controller/core/view.h"

namespace titan::api {

// Jobs as one page of metrics shows them: how many by state and reason, and figures of each that is not over.
class JobGauges {
 public:
  JobGauges(size_t most, absl::Time now);

  void add(const core::JobView& view);
  // Of what was added; once. Families may be empty.
  std::vector<prometheus::MetricFamily> take();
  size_t left_out() const { return left_out_; }  // Jobs that would have series of their own.

 private:
  void add_training(const core::JobView& view);
  void add_safety(const core::JobView& view);
  double since(int64_t time_ns) const;  // Seconds; 0 for a time that is to come.

  const size_t most_;
  const absl::Time now_;
  size_t shown_ = 0, left_out_ = 0;
  std::map<std::string, int> by_state_, by_reason_;
  double longest_wait_ = 0;
  prometheus::MetricFamily step_, loss_, tokens_, mfu_, experts_, ettr_, ranks_, attempts_;
  prometheus::MetricFamily in_vain_, step_age_, committed_, checkpoint_age_, save_failed_;
};

}  // namespace titan::api
