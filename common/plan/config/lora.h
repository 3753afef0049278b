#pragma once

#include <optional>
#include <string>

#include "common/plan/config/job_config.h"
#include "common/plan/models/adapters.h"

namespace titan::config {

// The adapters that a job trains; none: it trains the model itself.
std::optional<models::AdapterSpec> adapters_of(const JobConfig& config);

// What weights that are not trained are kept in: "float32", "bfloat16", or empty: what is computed with. They need no
// more digits than layers read of them: half the bytes of masters in float32.
std::string frozen_dtype(const JobConfig& config);

}  // namespace titan::config
