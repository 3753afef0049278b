#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace titan {

// "1 attempt", "2 attempts"; `plural` for nouns that take more than an "s".
template <typename Number>
std::string counted(Number count, absl::string_view noun, absl::string_view plural = "") {
  if (count == 1) return absl::StrCat(count, " ", noun);
  return plural.empty() ? absl::StrCat(count, " ", noun, "s") : absl::StrCat(count, " ", plural);
}

}  // namespace titan
