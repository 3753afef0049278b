#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Tokenizes the prompts of images for a text encoder, each to the same number of ids, as the classes T5Tokenizer and
// CLIPTokenizer of the package `transformers` do with padding to, and truncation at, a maximum length:
//   T5    the text, </s>, then padding; a text that is too long loses its end, not </s>.
//   CLIP  <|startoftext|>, the text, <|endoftext|>, then padding (<|endoftext|> again, unless the folder names another
//         token); a text that is too long loses its end, not <|endoftext|>.
// Not thread safe.
class PromptTokenizer {
 public:
  enum class Kind { kT5, kClip, kTest };

  // Loads the tokenizer in `folder`: spiece.model (T5) or vocab.json with merges.txt (CLIP), else tokenizer.json. The
  // kind is that of tokenizer_config.json's tokenizer_class, else of config.json's model_type, else of the files; only
  // if none of them decides, of the word "clip" in the folder's path (kind_source() says which). `length` is the number
  // of ids of a prompt; 0 takes the folder's own: model_max_length, else CLIP's number of positions. Errors: NotFound;
  // InvalidArgument, names the file and what it lacks, also for a length with no space for the tokens around a text or
  // beyond CLIP's positions.
  static absl::StatusOr<PromptTokenizer> load(const std::string& folder, int64_t length = 0);

  // Loads a language model's tokenizer for both encoders of a test without real encoders, as torchtitan's test mode
  // does: BOS, the text and EOS, then zeros; a text that is too long loses its end and EOS.
  static absl::StatusOr<PromptTokenizer> load_for_test(const std::string& folder, int64_t length);

  // Writes the prompt's ids to ids [length()]. InvalidArgument when `prompt` is not UTF-8; then `ids` are unchanged.
  absl::Status encode(std::string_view prompt, int64_t* ids);
  // Returns the number of ids of the whole prompt with those around it. encode() cuts a prompt that has more than
  // length(). Errors: as encode().
  absl::StatusOr<int64_t> full_length(std::string_view prompt);
  // Writes the prompts' ids to ids [prompts.size(), length()]. The error names the prompt's number, from 0.
  absl::Status encode_rows(const std::vector<std::string>& prompts, int64_t* ids);

  Kind kind() const { return kind_; }
  const std::string& kind_source() const { return kind_source_; }  // "tokenizer_config.json", or "the folder's path".
  int64_t length() const { return length_; }
  int32_t pad_id() const { return pad_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  PromptTokenizer() = default;
  absl::Status find_ends(const std::string& folder);
  absl::Status choose_length(const std::string& folder, int64_t length);

  std::unique_ptr<Tokenizer> tokenizer_;
  Kind kind_ = Kind::kTest;
  std::string kind_source_;
  bool from_python_files_ = false;        // The vocabulary of transformers' Python class, not a tokenizer.json.
  std::vector<int32_t> prefix_, suffix_;  // Around the text.
  int32_t pad_ = 0;
  int64_t length_ = 0;
  std::vector<int32_t> tokens_;  // Scratch space.
};

}  // namespace titan::data
