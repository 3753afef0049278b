#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/jinja/run.h"
#include "common/io/jinja/value.h"

namespace titan::jinja {

// Evaluates "+", "-", "*", "/", "//", "%" and "**" of numbers, texts and lists. Errors: InvalidArgument for other
// types, for a division by zero, and for integers beyond 64 bits; ResourceExhausted for too large results.
absl::StatusOr<Value> binary_operation(Run& run, const std::string& name, const Value& left, const Value& right);
absl::StatusOr<Value> negative(const Value& value);
// Evaluates "==", "<", "in" and so on.
absl::StatusOr<bool> comparison(Run& run, const std::string& name, const Value& left, const Value& right);

}  // namespace titan::jinja
