#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace titan::data {

// An entry of "added_tokens" in a tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool lstrip = false;      // Also matches the white space before it.
  bool rstrip = false;      // Also matches the white space after it.
  bool normalized = false;  // Searched in the normalized text instead of the original.
};

// Finds tokens such as "<|end_of_text|>" in text: the leftmost first, then the longest.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Calls `between` with each stretch of text outside tokens and `token` with each token's id, in order. Stops at the
  // first error.
  absl::Status split(std::string_view text, const std::function<absl::Status(std::string_view)>& between,
                     const std::function<void(int32_t)>& token) const;

  // Returns the bytes of the longest token at `at`; 0: no token is there.
  size_t length_at(std::string_view text, size_t at) const;

 private:
  struct Node {
    std::map<unsigned char, int32_t> children;
    int32_t token = -1;  // Index into tokens_ when a token ends here.
  };

  int32_t longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

}  // namespace titan::data
