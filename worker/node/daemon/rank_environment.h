#pragma once

#include <string>
#include <vector>

namespace titan::daemon {

// Selects the environment variables of the daemon that its shims and ranks receive, as "NAME=value": those that
// programs need (PATH, locale, temporary files) and the settings of libraries that ranks load. `more`: further names
// (--pass-env); a name that ends in '*' matches all names with that prefix. A variable named like a secret (last word
// TOKEN, KEY, SECRET, PASSWORD or the like, also with _FILE) is passed only by its full name or by "*", which matches
// everything. Variables of the daemon's own connection to its service manager and controller are never passed.
std::vector<std::string> rank_environment(const char* const* own, const std::vector<std::string>& more);

// Returns why `name` is not valid in `more`. Empty: it is valid.
std::string check_pass_env(const std::string& name);

}  // namespace titan::daemon
