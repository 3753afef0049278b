#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::cli {

// A configuration of `titanctl bench` besides the one that the command line names.
struct Variant {
  std::string name;
  std::vector<std::string> overrides;  // As common/plan/config takes them: "--resources.kernels", "reference".
};

// The words of a text as a shell would take them: blanks part, quotes of both kinds hold together, a backslash outside
// single quotes takes the next character as it is. Nothing is expanded. Errors: InvalidArgument (an open quote).
absl::StatusOr<std::vector<std::string>> split_words(std::string_view text);

// "NAME=--key value ...". Errors: InvalidArgument naming what is wrong: no name or one of other characters than
// letters, digits, '_', '-' and '.', no key, a word where a key has to stand.
absl::StatusOr<Variant> parse_variant(const std::string& text);

// All of them. Errors: those of parse_variant(); a name twice, or that of the first configuration.
absl::StatusOr<std::vector<Variant>> parse_variants(const std::vector<std::string>& texts, const std::string& first);

// Which configuration each run is of, `repeats` of each: in turns, every other round backwards, so that a machine that
// slows down or speeds up meanwhile does so to all alike. 2 of 3: 0 1 2 2 1 0.
std::vector<int> order_of_runs(int configurations, int repeats);

}  // namespace titan::cli
