#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/hf_mapper.h"

namespace titan::checkpoint {

// A model's config.json with the ids of the tokens that begin and end a text, which only its tokenizer knows. Ids that
// `tokenizer_folder` does not tell are null: without the keys transformers takes its classes' defaults, which are some
// ordinary tokens of another vocabulary.
nlohmann::json with_token_ids(nlohmann::json config, const std::string& tokenizer_folder);

// Writes `{folder}/config.json`; nothing for a model that has none.
absl::Status write_hf_config(storage::Files& files, const std::string& folder, const HfMapper& mapper,
                             const std::string& tokenizer_folder);

}  // namespace titan::checkpoint
