#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::cli {

// A configuration of `titanctl bench` in addition to the one that the command line names.
struct Variant {
  std::string name;
  std::vector<std::string> overrides;  // In the form that common/plan/config reads: "--resources.kernels", "reference".
};

// Splits a text into words as a shell does: blanks separate, quotes of both kinds group, a backslash outside single
// quotes escapes the next character. Nothing is expanded. Errors: InvalidArgument (an open quote).
absl::StatusOr<std::vector<std::string>> split_words(std::string_view text);

// Parses "NAME=--key value ...". Errors: InvalidArgument naming what is wrong: no name or one with characters other
// than letters, digits, '_', '-' and '.', no key, a word where a key must stand.
absl::StatusOr<Variant> parse_variant(const std::string& text);

// Parses all of them. Errors: those of parse_variant(); a name twice, or that of the first configuration.
absl::StatusOr<std::vector<Variant>> parse_variants(const std::vector<std::string>& texts, const std::string& first);

// Returns the configuration of each run, `repeats` of each: rounds over all of them, every other round backwards, so
// that a machine that slows down or speeds up affects all alike. 2 of 3: 0 1 2 2 1 0.
std::vector<int> order_of_runs(int configurations, int repeats);

}  // namespace titan::cli
