#pragma once

#include "common/plan/config/job_config.h"
#include "worker/rank/optim/lr_schedule.h"

namespace titan::optim {

// The schedule of a job's steps.
LrScheduleOptions schedule_options(const config::JobConfig& config);

}  // namespace titan::optim
