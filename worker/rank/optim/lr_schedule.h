#pragma once

// LrSchedule gives the factor on the learning rate for each step: warm-up, stable and decay phases from [lr_scheduler].

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::optim {

struct LrScheduleOptions {
  int64_t warmup_steps = 200;
  int64_t total_steps = 0;            // lr_scheduler.total_steps, or else training.steps.
  std::optional<double> decay_ratio;  // Fraction of total_steps. If unset, decay follows the warm-up at once.
  std::string decay_type = "linear";  // linear, sqrt or cosine.
  double min_lr_factor = 0;
};

// Warm-up, stable and decay phases as a pure function of the 0-based step: `factor(n)` scales the learning rate of the
// optimizer step after n finished ones. From step total_steps on the factor stays at min_lr_factor, or at 1 without a
// decay (torchtitan's becomes negative there).
class LrSchedule {
 public:
  // InvalidArgument names the invalid lr_scheduler key.
  static absl::StatusOr<LrSchedule> create(const LrScheduleOptions& options);

  double factor(int64_t step) const;

  int64_t warmup_steps() const { return warmup_; }
  int64_t stable_steps() const { return stable_; }
  int64_t decay_steps() const { return decay_; }
  const std::vector<std::string>& warnings() const { return warnings_; }  // Phases that were cut to fit total_steps.

 private:
  enum class Decay { kLinear, kSqrt, kCosine };

  int64_t warmup_ = 0, stable_ = 0, decay_ = 0;
  Decay shape_ = Decay::kLinear;
  double min_factor_ = 0;
  std::vector<std::string> warnings_;
};

// Returns the schedule options of a job's configuration.
LrScheduleOptions schedule_options(const config::JobConfig& config);

}  // namespace titan::optim
