#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::jinja {

struct Place {
  int line = 1;
  int column = 1;  // Bytes.
};

// InvalidArgument: "line 3, column 7: " and what is wrong.
absl::Status wrong(const Place& place, std::string_view what);

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
  std::string text;  // Of a string what it says.
  Place place;
};

// The tokens of a template, as Jinja with trim_blocks and lstrip_blocks cuts them; comments are gone and raw blocks are
// text. The last is kEnd.
absl::StatusOr<std::vector<Token>> tokens_of(std::string_view text);

}  // namespace titan::jinja
