#pragma once

// Reads prompts from files, and decodes a text that grows token by token.

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::tools {

// Reads one prompt per line: text, or a JSON object with a "prompt". Skips blank lines. InvalidArgument names the line.
absl::StatusOr<std::vector<std::string>> read_prompts(std::istream& in, const std::string& name);

// Decodes tokens up to the last complete character, because a token may end inside one.
class TextStreamer {
 public:
  explicit TextStreamer(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Adds a token and returns the text that can now be shown and was not yet shown.
  std::string add(int64_t token);
  // Returns the rest at the end. Bytes that are not a character are shown as U+FFFD.
  std::string rest();

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;
  size_t shown_ = 0;  // Bytes already returned.
};

}  // namespace titan::tools
