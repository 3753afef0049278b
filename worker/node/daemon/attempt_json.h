#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/attempt_record.h"

namespace titan::daemon {

using node::AttemptRecord;

// The record of an attempt as attempt.json and spec.json hold it.
nlohmann::json to_json(const AttemptRecord& record);
// Errors: DataLoss saying what is wrong with it.
absl::StatusOr<AttemptRecord> record_from_json(const nlohmann::json& from);

}  // namespace titan::daemon
