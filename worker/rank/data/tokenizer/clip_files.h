#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Returns the tokenizer of a CLIP text encoder's folder: vocab.json, with the content `vocabulary`, merges.txt, and the
// special tokens of tokenizer_config.json and special_tokens_map.json. Its tokens are those of the class CLIPTokenizer
// of the package `transformers` without the package ftfy, with which diffusers and torchtitan tokenize prompts:
//   - Control, format, private and unassigned characters and U+FFFD are removed. (The class removes what its Python
//     does not know; here it is what Unicode 16 does not.)
//   - The text is composed (NFC) and lower-cased, with a final sigma at the end of a word.
//   - Contractions, runs of letters, single digits, single Chinese characters and runs of other characters are words.
// This differs from the `tokenizers` package, which reads a tokenizer.json of CLIP, in the removed characters, Chinese
// characters and the final sigma. Errors: InvalidArgument, which names the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> load_clip_tokenizer(const std::string& folder,
                                                               const std::string& vocabulary);

}  // namespace titan::data
