#pragma once

// Formats counts, sizes and durations for people.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace titan {

// Formats "1 attempt" or "2 attempts". Pass `plural` for nouns that take more than an "s".
template <typename Number>
std::string counted(Number count, absl::string_view noun, absl::string_view plural = "") {
  if (count == 1) return absl::StrCat(count, " ", noun);
  return plural.empty() ? absl::StrCat(count, " ", noun, "s") : absl::StrCat(count, " ", plural);
}

// Formats as "31.0 GiB".
inline std::string gibibytes(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1LL << 30));
}

// Formats as "3.1 MiB".
inline std::string mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1LL << 20));
}

// Formats a duration for people: "9.3s", or "250ms" below one second.
inline std::string rounded(absl::Duration duration) {
  const absl::Duration unit = duration < absl::Seconds(1) ? absl::Milliseconds(1) : absl::Milliseconds(100);
  return absl::FormatDuration(absl::Floor(duration + unit / 2, unit));
}

}  // namespace titan
