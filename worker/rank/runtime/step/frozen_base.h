#pragma once

// The model beneath the adapters of a job: it is not saved with them, so a checkpoint knows it by a digest.

#include <string>

#include "absl/status/status.h"
#include "common/plan/models/adapters.h"
#include "nlohmann/json.hpp"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/runtime/engine/sharded_model.h"

namespace titan::runtime {

// Of every number that is not trained, as layers compute with it, by its tensor and its place there: 16 hexadecimal
// digits, the same on every rank and mesh. Collective.
std::string digest_of_base(ShardedModel& model, const comm::DeviceMesh& mesh);

// What a checkpoint says of the base and of how adapters are added to it.
nlohmann::json describe_base(const std::string& digest, const std::string& path, const models::AdapterSpec& adapters);

// Whether a step's adapters belong to this base. FailedPrecondition names what changed; `saved` null: nothing is known.
absl::Status check_base(const nlohmann::json& saved, const nlohmann::json& here);

}  // namespace titan::runtime
