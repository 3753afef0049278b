#pragma once

// Reads and writes an attempt's record as JSON, and rebuilds a damaged record from the other files of the run folder.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/node/core/attempt_record.h"

namespace titan::daemon {

using node::AttemptRecord;

// Returns the record as stored in attempt.json and spec.json.
nlohmann::json to_json(const AttemptRecord& record);
// Parses a record. Errors: DataLoss, which says what is wrong.
absl::StatusOr<AttemptRecord> record_from_json(const nlohmann::json& from);

// Error reason of an attempt whose record cannot be rebuilt. The attempt is refused: its ranks are stopped, and its
// devices stay reserved until the ranks are gone.
inline constexpr char kRecordLost[] = "RECORD_LOST";

struct RebuiltRecord {
  node::AttemptRecord record;
  std::string message;  // For people: how the damage was repaired and what is left to do.
};

// Rebuilds the record of an attempt whose attempt.json is damaged (`why`) from spec.json and the shim's files. If
// spec.json does not contain the record, the result is refused with RECORD_LOST and names no devices.
RebuiltRecord rebuild_record(const node::AttemptKey& key, const std::string& run_folder, const std::string& why);

}  // namespace titan::daemon
