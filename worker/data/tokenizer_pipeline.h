#pragma once

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/data/tokenizer_file.h"

namespace titan::data {

// Reads "normalizer", "pre_tokenizer" and "post_processor" of a tokenizer.json into `file`.
// Errors: InvalidArgument for what byte-level BPE does not use, by name.
absl::Status read_pipeline(const nlohmann::json& root, TokenizerFile& file);

}  // namespace titan::data
