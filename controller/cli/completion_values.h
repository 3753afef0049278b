#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "controller/cli/globals.h"

namespace titan::cli {

// What may stand as the value of an option of a verb ("--for" of `wait`), and as its arguments. Names come from the
// controller; without one there are none. Nothing is offered where only the user can know, and for files, which the
// shell completes by itself.
std::vector<std::string> values_of_option(const CLI::App& verb, const std::string& option, const Globals& globals);
std::vector<std::string> arguments_of(const CLI::App& verb, const Globals& globals);

}  // namespace titan::cli
