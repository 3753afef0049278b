#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// The "decoder" of a tokenizer.json: turns tokens into text.
class TokenDecoder {
 public:
  using Step = std::function<void(std::vector<std::string>& tokens)>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  std::string decode(std::vector<std::string> tokens) const;
  void join_with_spaces() { between_ = " "; }

 private:
  std::vector<Step> steps_;
  std::string between_;
};

// Reads a "decoder" object. If `decoder` is null, tokens are joined with spaces. Errors: InvalidArgument, names what is
// not reproduced exactly.
absl::StatusOr<TokenDecoder> read_decoder(const nlohmann::json* decoder);

}  // namespace titan::data
