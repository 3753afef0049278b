#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"

namespace titan::checkpoint {

// The ids of the tokens that begin and end a text, which only the tokenizer in `folder` knows: "bos_token_id" and
// "eos_token_id". Null where it has none, or where no folder is known. Errors: those of reading it.
absl::StatusOr<nlohmann::json> token_ids(const std::string& folder);

// config.json of weights of type `dtype`. Ids that the tokenizer does not tell are null in it: without the keys
// transformers takes its classes' defaults, which are some ordinary tokens of another vocabulary.
nlohmann::json hf_config(nlohmann::json config, at::ScalarType dtype, const nlohmann::json& ids);

// Writes all that a Hugging Face folder has beside its weights: config.json, the tokenizer's files, and
// generation_config.json, which names the ids when the tokenizer's folder has none of its own. Only the assets for a
// model that has no config. Returns warnings.
absl::StatusOr<std::vector<std::string>> write_beside_weights(storage::Files& files, const std::string& folder,
                                                              const HfMapper& mapper, const HfExport& options);

}  // namespace titan::checkpoint
