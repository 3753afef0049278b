#pragma once

#include <string>

#include "common/config/job_config.h"
#include "worker/optim/optimizer.h"

namespace titan::runtime {

// What [optimizer] says of one group of parameters.
optim::Options optimizer_options(const config::JobConfig& config);

// What the moments of matrices are kept as: float32, bfloat16, float64, 8bit.
std::string state_dtype(const config::JobConfig& config);

// What whoever reads the log must hear of states that were saved as `saved`, and go on as this job's; empty: nothing.
std::string conversion_notice(const std::string& saved, const config::JobConfig& config);

}  // namespace titan::runtime
