#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// "+", "-", "*", "/", "//", "%" and "**" of numbers, texts and lists. Errors: InvalidArgument for other types, for a
// division by zero, and for whole numbers beyond 64 bits.
absl::StatusOr<Value> binary_operation(Run& run, const std::string& name, const Value& left, const Value& right);
absl::StatusOr<Value> negative(const Value& value);
// "==", "<", "in" and so on.
absl::StatusOr<bool> comparison(Run& run, const std::string& name, const Value& left, const Value& right);

}  // namespace titan::jinja
