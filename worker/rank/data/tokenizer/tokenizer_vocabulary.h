#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer_file.h"

namespace titan::data {

// Of vocabulary and added tokens, as the file spells them.
struct TokenIds {
  absl::flat_hash_map<std::string, int32_t> by_token;
  absl::flat_hash_map<int32_t, std::string> by_id;
};

// Reads "model" of a tokenizer.json, whose pipeline `file` holds already. Errors: InvalidArgument, names the key.
absl::Status read_model(const nlohmann::json& root, TokenizerFile& file, TokenIds& ids);

}  // namespace titan::data
