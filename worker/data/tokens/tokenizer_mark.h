#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"

namespace titan::data {

// What tells whether tokens are a tokenizer's: the checksum of the file that says what it is, and what surrounds
// documents.
struct TokenizerMark {
  uint32_t sum = 0;
  int64_t bos = -1, eos = -1, max_id = 0;

  bool operator==(const TokenizerMark&) const = default;
};

absl::StatusOr<TokenizerMark> mark_of(const std::string& folder, const Tokenizer& tokenizer);

}  // namespace titan::data
