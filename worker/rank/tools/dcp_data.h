#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "nlohmann/json.hpp"

namespace titan::tools {

// Where a job stands in its data, as torchtitan's data loader says it. `dataloader` and `per_rank` are a manifest's.
// Reads the one document in which each rank stands. {"world_size", "dp_rank_0": state, ...}.
absl::StatusOr<nlohmann::json> torchtitan_positions(const config::JobConfig& config, const nlohmann::json& dataloader,
                                                    const std::vector<nlohmann::json>& per_rank,
                                                    const std::string& tokenizer);

}  // namespace titan::tools
