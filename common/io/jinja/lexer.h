#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::jinja {

struct SourceLocation {
  int line = 1;
  int column = 1;  // In bytes.
};

// Returns InvalidArgument: "line 3, column 7: " and `what`.
absl::Status wrong(const SourceLocation& place, std::string_view what);

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kInteger,
    kFloat,
    kString,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // For a string, its value.
  SourceLocation place;
};

// Splits a template into tokens as Jinja does with trim_blocks and lstrip_blocks. Comments are dropped, raw blocks
// become text, and the last token is kEnd. Errors: InvalidArgument, which names the place.
absl::StatusOr<std::vector<Token>> tokens_of(std::string_view text);

}  // namespace titan::jinja
