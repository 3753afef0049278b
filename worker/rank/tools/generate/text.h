#pragma once

// Prompts from files, and a text that grows by tokens.

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::tools {

// One a line: a text, or where every line is a JSON object its "prompt". Blank lines are none.
// InvalidArgument names the line.
absl::StatusOr<std::vector<std::string>> read_prompts(std::istream& in, const std::string& name);

// What tokens say, as far as their last character is whole: a token may end inside one.
class GrowingText {
 public:
  explicit GrowingText(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What can be shown now of what has not been yet.
  std::string add(int64_t token);
  // And what is left at the end: bytes that make no character are shown as U+FFFD.
  std::string rest();

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;
  size_t shown_ = 0;  // Bytes.
};

}  // namespace titan::tools
