#pragma once

// Checks of a spec's numbers that all kinds of models share. Each returns what is wrong, or "".

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"

namespace titan::models {

// A member of a spec, by its name.
struct NamedNumber {
  const char* name;
  int64_t value;
};

inline std::string not_above_zero(std::initializer_list<NamedNumber> numbers) {
  for (const NamedNumber& number : numbers) {
    if (number.value <= 0) return absl::StrCat(number.name, ": ", number.value, " is not above 0");
  }
  return "";
}

}  // namespace titan::models
