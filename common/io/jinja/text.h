#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"

// Texts as Python's str has them: of characters, kept as UTF-8.
namespace titan::jinja {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};
// The character at a byte; a byte that is no UTF-8 is a character by itself.
Character character_at(std::string_view text, size_t at);
std::vector<std::string> characters(std::string_view text);
int64_t length(std::string_view text);

// str.isspace of one character.
bool is_space(uint32_t code);
// str.strip and its sisters: white space, or any of `set`.
std::string strip(std::string_view text, const std::optional<std::string>& set, bool left, bool right);
std::vector<std::string> split_lines(std::string_view text);
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, int64_t most);
std::vector<std::string> split_from_the_right(std::string_view text, const std::optional<std::string>& separator,
                                              int64_t most);
std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most);
// The same, unless the limits of the run are in the way.
absl::StatusOr<std::string> replaced_text(Run& run, std::string_view text, std::string_view old, std::string_view with,
                                          int64_t most);

// Letters are changed within ASCII. Errors: InvalidArgument for other text, whose rules are Unicode's.
enum class Case { kLower, kUpper, kCapitalized, kTitle };
absl::StatusOr<std::string> with_case(std::string_view text, Case wanted);

}  // namespace titan::jinja
