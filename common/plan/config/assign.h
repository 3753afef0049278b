#pragma once

#include <optional>
#include <string>

#include "common/plan/config/fields.h"
#include "common/plan/config/raw.h"

namespace titan::config {

struct FieldError {
  std::string message;
  std::string suggestion;
};

// Writes the value into the field's member if its type, bounds and allowed values fit; otherwise returns what is wrong.
std::optional<FieldError> assign(const Field& field, const RawValue& raw);

// Returns what a field accepts, for messages and help: "one of AdamW, Adam", "an integer (steps), at least 1".
std::string expected(const Field& field);

}  // namespace titan::config
