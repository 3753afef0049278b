#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Returns the tokenizer of a T5 encoder's folder: spiece.model, with the content `pieces`, and the special tokens of
// tokenizer_config.json and special_tokens_map.json. Its tokens are those of the class T5Tokenizer of the package
// `transformers`, with "legacy" true (also if the folder does not say so) or false:
//   - Special tokens and the sentinel tokens <extra_id_0>, <extra_id_1>.. are found in the text first. Sentinel tokens
//     have the ids after the pieces, from the last one down, and take the white space around them.
//   - The text between them becomes pieces, each stretch as if it were a whole text.
// A document ends with </s> and begins with nothing. Errors: InvalidArgument, which names the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> load_t5_tokenizer(const std::string& folder, const std::string& pieces);

}  // namespace titan::data
