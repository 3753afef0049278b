#pragma once

// Locates the files of the installation and the folders in which daemons keep their state.

#include <string>

namespace titan::storage {

// Returns the path of a file that comes with the running program: in the program's folder, in the bin folder next to it
// (tests), or in an installation's lib/titan. "" when it is in none of them.
std::string installed_file(const std::string& name);

// Returns where a daemon keeps its state by default, independent of the working folder: /var/lib/titan/NAME for root,
// else $XDG_STATE_HOME/titan/NAME or ~/.local/state/titan/NAME. Empty when the user has no home.
std::string default_state_folder(const std::string& name);

// Applies the rule of default_state_folder() to given values.
std::string state_folder_of(bool is_root, const std::string& xdg_state_home, const std::string& home,
                            const std::string& name);

}  // namespace titan::storage
