#pragma once

// The model below a job's adapters. Checkpoints of adapters do not contain it and identify it by a digest.

#include <string>

#include "absl/status/status.h"
#include "common/plan/models/adapters.h"
#include "nlohmann/json.hpp"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/runtime/engine/sharded_model.h"

namespace titan::runtime {

// Returns a digest of every number that is not trained, as layers compute with it, by tensor and index: 16 hexadecimal
// digits, the same on every rank and mesh. Collective.
std::string digest_of_base(ShardedModel& model, const comm::DeviceMesh& mesh);

// Describes the base, and how adapters are added to it, for a checkpoint.
nlohmann::json describe_base(const std::string& digest, const std::string& path, const models::AdapterSpec& adapters);

// Checks that a step's adapters belong to this base. FailedPrecondition names what changed. `saved` null: unknown,
// accepted.
absl::Status check_base(const nlohmann::json& saved, const nlohmann::json& here);

}  // namespace titan::runtime
