#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/io/tokenizer_files/find.h"

namespace titan::tokenizer_files {

// The largest number of a token that the file itself gives; tiktoken's names no special tokens, which follow its ranks.
// What only whoever makes tokens would notice is not looked at. InvalidArgument, names the file.
absl::StatusOr<int64_t> largest_id(const Found& found);

}  // namespace titan::tokenizer_files
