#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "controller/cli/globals.h"

namespace titan::cli {

// Return the values that an option of a verb ("--for" of `wait`) and its arguments may have. Names come from the
// controller, and are missing without one. Nothing is returned for values that only the user knows, and for files,
// which the shell completes itself.
std::vector<std::string> values_of_option(const CLI::App& verb, const std::string& option, const Globals& globals);
std::vector<std::string> arguments_of(const CLI::App& verb, const Globals& globals);

}  // namespace titan::cli
