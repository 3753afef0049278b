#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// A job for scripts: to_json's form with the configuration as an object ("spec.config") and the short id ("id").
nlohmann::ordered_json job_json(const v1::Job& job);

// "running" or "RUNNING". Errors: InvalidArgument with the nearest state.
absl::StatusOr<v1::Job::State> parse_state(const std::string& text);

}  // namespace titan::cli
