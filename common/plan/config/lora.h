#pragma once

#include <optional>

#include "common/plan/config/job_config.h"
#include "common/plan/models/adapters.h"

namespace titan::config {

// The adapters that a job trains; none: it trains the model itself.
std::optional<models::AdapterSpec> adapters_of(const JobConfig& config);

}  // namespace titan::config
