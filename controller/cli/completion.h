#pragma once

// Completes titanctl's command lines in a shell: the script that the shell loads, and the candidates that it requests.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controller/cli/globals.h"

namespace CLI {
class App;
}

namespace titan::cli {

// Returns a script for bash, zsh or fish that calls `titanctl __complete` for candidates. Errors: InvalidArgument for
// other shells.
absl::StatusOr<std::string> completion_script(const std::string& shell);

// Returns the candidates for the last of `words` (all words after "titanctl", the last one perhaps empty): verbs,
// flags, configuration keys, and the controller's jobs and nodes where one is named. Never fails: without a controller,
// jobs and nodes are missing.
std::vector<std::string> complete(const CLI::App& app, const std::vector<std::string>& words, const Globals& globals);

}  // namespace titan::cli
