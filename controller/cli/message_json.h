#pragma once

// Writes protocol messages, jobs among them, as JSON for scripts.

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// Returns a message as JSON for scripts: proto field names, every field present, 64-bit numbers as numbers, times as
// RFC 3339 text, enumerations by name, absent messages as null. (protobuf's own mapping quotes 64-bit numbers.)
nlohmann::ordered_json to_json(const google::protobuf::Message& message);

// Returns a job for scripts: to_json's form with the configuration as an object ("spec.config") and the short id
// ("id").
nlohmann::ordered_json job_json(const v1::Job& job);

// Accepts "running" or "RUNNING". Errors: InvalidArgument with the nearest state.
absl::StatusOr<v1::Job::State> parse_state(const std::string& text);

}  // namespace titan::cli
