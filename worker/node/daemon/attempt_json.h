#pragma once

// Writes and reads the record of an attempt as JSON, and rebuilds one that is damaged from the files beside it.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/attempt_record.h"

namespace titan::daemon {

using node::AttemptRecord;

// The record of an attempt as attempt.json and spec.json hold it.
nlohmann::json to_json(const AttemptRecord& record);
// Errors: DataLoss saying what is wrong with it.
absl::StatusOr<AttemptRecord> record_from_json(const nlohmann::json& from);

// Error reason of an attempt whose record cannot be rebuilt. It is refused: its ranks are stopped, and its devices stay
// taken until they are gone.
inline constexpr char kRecordLost[] = "RECORD_LOST";

struct RebuiltRecord {
  node::AttemptRecord record;
  std::string message;  // What was done about it and what is left to do, for people.
};

// The record of an attempt whose attempt.json is damaged (`why`), from spec.json and shim.json beside it. Where these
// do not tell what was asked for, the record says RECORD_LOST and names no devices.
RebuiltRecord rebuild_record(const node::AttemptKey& key, const std::string& run_folder, const std::string& why);

}  // namespace titan::daemon
