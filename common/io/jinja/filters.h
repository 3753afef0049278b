#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/jinja/arguments.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// value|name(arguments)
absl::StatusOr<Value> apply_filter(Run& run, const std::string& name, const Value& value, const Arguments& arguments);
// value is name(arguments)
absl::StatusOr<bool> apply_test(Run& run, const std::string& name, const Value& value, const Arguments& arguments);
// name(arguments) of a function that every template has.
absl::StatusOr<Value> call_function(Run& run, const std::string& name, const Arguments& arguments);

}  // namespace titan::jinja
