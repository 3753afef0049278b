#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::cli {

// Of a flag: a whole number, and `least` at least. CLI11's own checks tell of a word as a number out of a range that
// ends with the largest double, written out.
inline CLI::Validator whole_number(int least) {
  const auto check = [least](const std::string& text) -> std::string {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= least) return "";
    return absl::StrCat("'", text, "' is not a whole number of at least ", least);
  };
  return CLI::Validator(check, absl::StrCat(">=", least));
}

// Likewise from `least` to `most`.
inline CLI::Validator whole_number(int least, int most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) return "";
    return absl::StrCat("'", text, "' is not a whole number from ", least, " to ", most);
  };
  return CLI::Validator(check, absl::StrCat(least, "..", most));
}

}  // namespace titan::cli
