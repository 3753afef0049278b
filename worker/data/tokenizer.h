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

// Byte-level BPE read from a folder's tokenizer.json (and tokenizer_config.json): token for token what the Python
// `tokenizers` package gives. Keeps a word cache, so it is not thread safe.
class Tokenizer {
 public:
  // Errors: NotFound; InvalidArgument, names the file and the key that is wrong or not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& folder);
  virtual ~Tokenizer() = default;

  // Appends the text's tokens, without BOS and EOS. InvalidArgument when `text` is not UTF-8.
  virtual absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) = 0;

  // Appends BOS, the text and EOS, each once, as torchtitan prepares a document (those that the tokenizer defines).
  virtual absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) = 0;

  // The bytes of the tokens, added tokens included; unknown ids give nothing.
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;

  virtual int64_t vocab_size() const = 0;  // Added tokens included. No id is larger than max_id().
  virtual int32_t max_id() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
};

}  // namespace titan::data
