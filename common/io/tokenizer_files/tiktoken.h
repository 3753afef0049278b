#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::tokenizer_files {

// Returns whether the first line with text has the form of tiktoken's files: a token in base64, a space and its rank.
bool looks_like_tiktoken(std::string_view bytes);

// Returns tokens with their ranks, which are their ids. Errors: InvalidArgument, which names the line, for a malformed
// line and a duplicate token or rank; also for a single byte without a token.
absl::StatusOr<std::vector<std::pair<std::string, int32_t>>> parse_tiktoken(std::string_view bytes);

}  // namespace titan::tokenizer_files
