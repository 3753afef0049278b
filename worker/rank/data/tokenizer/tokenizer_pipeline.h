#pragma once

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer_file.h"

namespace titan::data {

// Reads "normalizer", "pre_tokenizer", "post_processor" and, unless words are bytes, "decoder" of a tokenizer.json into
// `file`. Errors: InvalidArgument, names what is not reproduced exactly.
absl::Status read_pipeline(const nlohmann::json& root, TokenizerFile& file);

}  // namespace titan::data
