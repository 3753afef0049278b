#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {

// Numbers, texts, lists and dicts as JSON; tuples are lists, bytes are JSON's binary. `where` stands in front of
// messages. Errors: FailedPrecondition for anything else, ResourceExhausted for what is nested too deep or shares so
// much that it would be larger than what was read.
absl::StatusOr<nlohmann::json> plain(const Document& document, const std::string& where);

// The bytes of such a JSON binary.
std::string bytes_of(const nlohmann::json& binary);

}  // namespace titan::pickle
