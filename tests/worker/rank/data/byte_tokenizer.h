#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data::testing {

// A tokenizer of bytes that needs no file: the last of its 257 tokens is for derived classes.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kSpecial = 256;

  absl::Status encode(std::string_view text, std::vector<int32_t>& tokens) override {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return absl::OkStatus();
  }
  std::string decode(const std::vector<int32_t>&) const override { return ""; }
  std::string spelling(int32_t) const override { return ""; }
  std::string bytes(int32_t) const override { return ""; }
  int64_t vocab_size() const override { return kSpecial + 1; }
  int32_t max_id() const override { return kSpecial; }
  std::vector<int32_t> prefix() const override { return {}; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> eos_id() const override { return std::nullopt; }
};

}  // namespace titan::data::testing
