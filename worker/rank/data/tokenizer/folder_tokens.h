#pragma once

// Reads the special tokens that a folder's files define around a vocabulary, as the classes CLIPTokenizer and
// T5Tokenizer of the package `transformers` do.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/added_tokens.h"

namespace titan::data {

using TokenRoles = std::map<std::string, std::string>;  // "eos_token" -> "</s>".

struct FolderTokens {
  std::vector<AddedToken> tokens;  // Matched in the original text. Id -1: not placed yet.
  TokenRoles roles;                // The tokens that have a role, by tokenizer_config.json's keys.
};

// Reads the tokens of `config`, the folder's tokenizer_config.json. If it has no "added_tokens_decoder",
// special_tokens_map.json, added_tokens.json and the "added_tokens" of a tokenizer.json count as well. `defaults` are
// the roles that the class fills when no file mentions them; a JSON null leaves a role empty. Errors: InvalidArgument,
// names the file and the key.
absl::StatusOr<FolderTokens> read_folder_tokens(const std::string& folder, const nlohmann::json& config,
                                                const TokenRoles& defaults);

// Gives each token without an id the one that `id_of` returns for its text, else the next one from `size` on, which is
// the number of tokens of the vocabulary and of the tokens with an id outside it.
void place_tokens(const std::function<std::optional<int32_t>(const std::string&)>& id_of, int32_t size,
                  std::vector<AddedToken>& tokens);

}  // namespace titan::data
