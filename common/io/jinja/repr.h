#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// str() of a value, as it is printed. Errors: InvalidArgument for what has no text of its own, as a generator.
absl::StatusOr<std::string> to_text(Run& run, const Value& value);

// json.dumps() of a value.
struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent;  // One level of it.
  std::string comma = ", ", colon = ": ";
  bool sorted = false;
};
absl::StatusOr<std::string> to_json_text(Run& run, const Value& value, const JsonStyle& style);

// repr() of a float.
std::string float_text(double number);

}  // namespace titan::jinja
