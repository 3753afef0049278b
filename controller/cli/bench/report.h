#pragma once

#include <string>
#include <vector>

#include "controller/cli/bench/figures.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// Rows of cells, the header first: a row a figure that some run knows, a column a configuration, and beside each but
// the first its ratio to the first. "1,234 (1,200 to 1,260)": the median, and of several runs the least and the
// greatest.
std::vector<std::vector<std::string>> table_rows(const std::vector<Measured>& all);

// {"configurations": [{"name", "overrides", "runs": [{figure: value}], "figures": {figure: {"median", "least",
// "greatest"}}, "ratios": the same, to the first; not in the first}]}
nlohmann::ordered_json report_json(const std::vector<Measured>& all);

// "12,345.7"
std::string grouped(double value, int digits);

}  // namespace titan::cli
