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

// A folder's tokenizer: token for token what the Python package of its kind gives, `tokenizers`, `sentencepiece` or
// `tiktoken`. Keeps a word cache, so it is not thread safe.
class Tokenizer {
 public:
  // From tokenizer.json (and tokenizer_config.json); else from tokenizer.model, which is SentencePiece's or tiktoken's,
  // told apart by what is in it; else from the folder's one *.tiktoken. Errors: NotFound; InvalidArgument, names the
  // file and the key that is wrong or not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& folder);
  virtual ~Tokenizer() = default;

  // Appends the text's tokens, without BOS and EOS. InvalidArgument when `text` is not UTF-8.
  virtual absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) = 0;

  // Appends BOS, the text and EOS, each once, as torchtitan prepares a document (those that the tokenizer defines).
  virtual absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) = 0;

  // The text of the tokens, added tokens included; unknown ids give nothing.
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;

  // How the vocabulary spells a token ("▁the", "<0x0A>"; tokens of bytes are spelled by these), and the bytes of a text
  // that it stands for (" the", "\n"). Empty for unknown ids.
  virtual std::string spelling(int32_t token) const = 0;
  virtual std::string bytes(int32_t token) const = 0;

  virtual int64_t vocab_size() const = 0;  // Added tokens included. No id is larger than max_id().
  virtual int32_t max_id() const = 0;
  // What the tokenizer's own files put before a text: its post-processor's tokens, and BOS where there is none such.
  virtual std::vector<int32_t> prefix() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
};

}  // namespace titan::data
