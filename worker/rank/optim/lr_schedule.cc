#include "worker/rank/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"

namespace titan::optim {

absl::StatusOr<LrSchedule> LrSchedule::create(const LrScheduleOptions& options) {
  LrSchedule schedule;
  if (options.decay_type == "linear") {
    schedule.shape_ = Decay::kLinear;
  } else if (options.decay_type == "sqrt") {
    schedule.shape_ = Decay::kSqrt;
  } else if (options.decay_type == "cosine") {
    schedule.shape_ = Decay::kCosine;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("lr_scheduler.decay_type: \"", options.decay_type, "\" is not one of linear, sqrt, cosine"));
  }
  if (options.warmup_steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr_scheduler.warmup_steps: ", options.warmup_steps, " is negative"));
  }
  if (options.total_steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat("lr_scheduler.total_steps: ", options.total_steps, " is negative"));
  }
  const int64_t total = options.total_steps;
  schedule.warmup_ = options.warmup_steps;
  if (schedule.warmup_ > total) {
    schedule.warnings_.push_back(absl::StrCat("lr_scheduler.warmup_steps ", schedule.warmup_, " exceeds the ",
                                              counted(total, "step"), " of the schedule: using ", total));
    schedule.warmup_ = total;
  }
  const int64_t remaining = total - schedule.warmup_;
  schedule.decay_ = remaining;
  if (options.decay_ratio) {
    if (!(*options.decay_ratio >= 0 && *options.decay_ratio <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("lr_scheduler.decay_ratio: ", *options.decay_ratio, " is not between 0 and 1"));
    }
    // Rounds half to even, like Python's round().
    schedule.decay_ = static_cast<int64_t>(std::nearbyint(static_cast<double>(total) * *options.decay_ratio));
    if (schedule.decay_ > remaining) {
      schedule.warnings_.push_back(absl::StrCat("lr_scheduler: warm-up (", schedule.warmup_, ") and decay (",
                                                schedule.decay_, ") exceed ", counted(total, "step"),
                                                ": decaying over ", remaining));
      schedule.decay_ = remaining;
    }
  }
  // Adds one virtual step to the total, so that the last real one still learns.
  schedule.stable_ = total + 1 - schedule.warmup_ - schedule.decay_;
  schedule.min_factor_ = options.min_lr_factor;
  return schedule;
}

double LrSchedule::factor(int64_t step) const {
  if (step < warmup_) return static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (step < warmup_ + stable_ || decay_ == 0) return 1.0;
  const double progress =
      std::min(1.0, static_cast<double>(step + 1 - warmup_ - stable_) / static_cast<double>(decay_));
  double shape = 0;
  switch (shape_) {
    case Decay::kLinear:
      shape = 1 - progress;
      break;
    case Decay::kSqrt:
      shape = 1 - std::sqrt(progress);
      break;
    case Decay::kCosine:
      shape = 0.5 * (1.0 + std::cos(M_PI * progress));
      break;
  }
  return min_factor_ + (1 - min_factor_) * shape;
}

LrScheduleOptions schedule_options(const config::JobConfig& config) {
  const config::LrSchedulerSection& lr = config.lr_scheduler;
  return {.warmup_steps = lr.warmup_steps,
          .total_steps = lr.total_steps.value_or(config.training.steps),
          .decay_ratio = lr.decay_ratio,
          .decay_type = lr.decay_type,
          .min_lr_factor = lr.min_lr_factor};
}

}  // namespace titan::optim
