#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer_file.h"

namespace titan::data {

// Reads tiktoken's file of ranks. It holds neither the split pattern nor special tokens: these come from `encoding`,
// which is "llama3", "cl100k_base" or "o200k_base". `config` (tokenizer_config.json, or null) may override them:
// "tiktoken_encoding", "added_tokens_decoder" by number, "bos_token" and "eos_token". Errors: InvalidArgument, without
// the file's name.
absl::StatusOr<TokenizerFile> read_tiktoken(std::string_view bytes, const std::string& encoding,
                                            const nlohmann::json& config);

}  // namespace titan::data
