#pragma once

// Declares the filters, tests and functions that templates may call, and reports by name which of them, and which
// methods, exist: a template that uses any other is refused before it runs.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/io/jinja/arguments.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_function(std::string_view name);
bool is_method(std::string_view name);  // Whether a string, a mapping or "loop" has it.

// Evaluates value|name(arguments).
absl::StatusOr<Value> apply_filter(Run& run, const std::string& name, const Value& value, const Arguments& arguments);
// Evaluates `value is name(arguments)`.
absl::StatusOr<bool> apply_test(Run& run, const std::string& name, const Value& value, const Arguments& arguments);
// Calls name(arguments), where `name` is a function that every template has.
absl::StatusOr<Value> call_function(Run& run, const std::string& name, const Arguments& arguments);

}  // namespace titan::jinja
