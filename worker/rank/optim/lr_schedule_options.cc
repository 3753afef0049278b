#include "worker/rank/optim/lr_schedule_options.h"

namespace titan::optim {

LrScheduleOptions schedule_options(const config::JobConfig& config) {
  const config::LrScheduler& lr = config.lr_scheduler;
  return {.warmup_steps = lr.warmup_steps,
          .total_steps = lr.total_steps.value_or(config.training.steps),
          .decay_ratio = lr.decay_ratio,
          .decay_type = lr.decay_type,
          .min_lr_factor = lr.min_lr_factor};
}

}  // namespace titan::optim
