#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"

// Handles texts like Python's str, as sequences of characters, stored as UTF-8.
namespace titan::jinja {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};
// Returns the character at a byte offset; a byte that is not UTF-8 is a character by itself.
Character character_at(std::string_view text, size_t at);
// Return the text's characters, and their number.
std::vector<std::string> characters(std::string_view text);
int64_t length(std::string_view text);

// Returns str.isspace of one character.
bool is_space(uint32_t code);
// These are str.strip, splitlines, split, rsplit and replace. Without `set` or `separator` they use white space. A
// negative `most` means no limit.
std::string strip(std::string_view text, const std::optional<std::string>& set, bool left, bool right);
std::vector<std::string> split_lines(std::string_view text);
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, int64_t most);
std::vector<std::string> split_from_the_right(std::string_view text, const std::optional<std::string>& separator,
                                              int64_t most);
std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most);
// Same as replace(), within the limits of the run. Errors: ResourceExhausted.
absl::StatusOr<std::string> replaced_text(Run& run, std::string_view text, std::string_view old, std::string_view with,
                                          int64_t most);

// Changes the case of ASCII text. Errors: InvalidArgument for other text, where Unicode's rules apply.
enum class Case { kLower, kUpper, kCapitalized, kTitle };
absl::StatusOr<std::string> with_case(std::string_view text, Case wanted);

}  // namespace titan::jinja
