#pragma once

#include <string>
#include <vector>

namespace titan::daemon {

// What of the daemon's environment its shims and ranks get, as "NAME=value": what a program needs to run (PATH, the
// locale, temporary files) and the settings of libraries that ranks load. `more`: further names (--pass-env); one that
// ends in '*' stands for all that begin so. A variable that is named like a secret (its last word is TOKEN, KEY,
// SECRET, PASSWORD, also with _FILE) is got by its whole name alone, or by "*", which is everything. What is the
// daemon's own, by which it speaks to its service manager or is known to its controller, nobody gets, whatever `more`
// says.
std::vector<std::string> rank_environment(const char* const* own, const std::vector<std::string>& more);

// Why this is nothing that `more` may hold; empty when it may.
std::string check_pass_env(const std::string& name);

}  // namespace titan::daemon
