#pragma once

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// A message as JSON for scripts: proto field names, every field present, 64-bit numbers as numbers, times as RFC 3339
// text, enumerations by name, absent messages as null. (protobuf's own mapping quotes 64-bit numbers.)
nlohmann::ordered_json to_json(const google::protobuf::Message& message);

}  // namespace titan::cli
