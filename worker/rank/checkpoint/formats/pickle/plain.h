#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/pickle/value.h"

namespace titan::pickle {

// Converts numbers, texts, lists and dicts to JSON; tuples become lists, bytes become JSON's binary. `where` begins
// messages. Errors: FailedPrecondition for anything else; ResourceExhausted for values that are nested too deep, or
// shared so much that the result would be far larger than the input.
absl::StatusOr<nlohmann::json> plain(const ParsedPickle& document, const std::string& where);

// Returns the bytes of such a JSON binary; none for anything else.
std::string bytes_of(const nlohmann::json& binary);

}  // namespace titan::pickle
