#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::data {

// A folder's tokenizer. Gives the same tokens as the Python package of its kind: `tokenizers`, `sentencepiece`,
// `tiktoken`, or `transformers` for T5 and CLIP without a tokenizer.json. Caches words, so it is not thread safe.
class Tokenizer {
 public:
  // Loads tokenizer.json (and tokenizer_config.json); else tokenizer.model, SentencePiece's or tiktoken's, recognized
  // by its content; else the folder's only *.tiktoken; else spiece.model (t5_files.h); else vocab.json and merges.txt
  // (clip_files.h). Errors: NotFound; InvalidArgument, names the file and the key that is wrong or not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& folder);
  virtual ~Tokenizer() = default;

  // Appends the text's tokens, without BOS and EOS. InvalidArgument when `text` is not UTF-8.
  virtual absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) = 0;

  // Appends BOS, the text and EOS, each once, as torchtitan prepares a document (BOS and EOS if the tokenizer defines
  // them). An error leaves `tokens` unchanged.
  virtual absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) = 0;

  // Returns the text of the tokens, including added tokens. Unknown ids are skipped.
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;

  // Return how the vocabulary spells a token ("\u2581the", "<0x0A>"; a byte-level token is spelled as its bytes), and
  // the bytes of text that it stands for (" the", "\n"). Empty for unknown ids.
  virtual std::string spelling(int32_t token) const = 0;
  virtual std::string bytes(int32_t token) const = 0;

  virtual int64_t vocab_size() const = 0;  // Includes added tokens. No id exceeds max_id().
  virtual int32_t max_id() const = 0;
  // Returns the tokens that the tokenizer's files put before a text: the post-processor's of a tokenizer.json, BOS in
  // other formats.
  virtual std::vector<int32_t> prefix() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
};

}  // namespace titan::data
