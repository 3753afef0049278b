#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// Returns str() of a value, as it is printed. Errors: InvalidArgument for values that cannot be printed, such as a
// generator.
absl::StatusOr<std::string> to_text(Run& run, const Value& value);

// Options of json.dumps().
struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent;  // One level of indentation.
  std::string comma = ", ", colon = ": ";
  bool sorted = false;
};
// Returns json.dumps() of a value. Errors: InvalidArgument for values that JSON cannot express.
absl::StatusOr<std::string> to_json_text(Run& run, const Value& value, const JsonStyle& style);

// Returns repr() of a float.
std::string float_text(double number);

}  // namespace titan::jinja
