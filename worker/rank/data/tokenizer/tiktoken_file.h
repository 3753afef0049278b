#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer_file.h"

namespace titan::data {

// What tiktoken's file of ranks says. It holds neither the pattern that cuts words nor special tokens; these come from
// `encoding`, which is "llama3", "cl100k_base" or "o200k_base", and `config` (tokenizer_config.json, or null) may name
// them otherwise: "tiktoken_encoding", "added_tokens_decoder" by number, "bos_token" and "eos_token". Errors:
// InvalidArgument, without the file's name.
absl::StatusOr<TokenizerFile> read_tiktoken(std::string_view bytes, const std::string& encoding,
                                            const nlohmann::json& config);

}  // namespace titan::data
