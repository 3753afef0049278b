#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "controller/cli/globals.h"

namespace titan::cli {

// Values that an option of a verb ("--for" of `wait`) and its arguments may have. Names come from the controller;
// without one there are none. Offers nothing where only the user can know, nor for files, which the shell completes by
// itself.
std::vector<std::string> values_of_option(const CLI::App& verb, const std::string& option, const Globals& globals);
std::vector<std::string> arguments_of(const CLI::App& verb, const Globals& globals);

}  // namespace titan::cli
