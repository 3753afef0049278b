#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::tokenizer_files {

// The form of tiktoken's files: a token in base64, a space and its rank on each line.
bool looks_like_tiktoken(std::string_view bytes);

// Tokens and ranks, which are their numbers. InvalidArgument, names the line: what is no such line, a token or a rank
// that is there twice, a single byte that is no token.
absl::StatusOr<std::vector<std::pair<std::string, int32_t>>> parse_tiktoken(std::string_view bytes);

}  // namespace titan::tokenizer_files
