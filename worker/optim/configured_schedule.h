#pragma once

#include "common/config/job_config.h"
#include "worker/optim/lr_schedule.h"

namespace titan::optim {

// The schedule of a job's steps.
LrScheduleOptions schedule_options(const config::JobConfig& config);

}  // namespace titan::optim
