#pragma once

// Locates the files of the installation and the folders in which daemons keep their state.

#include <string>

namespace titan::storage {

// Where a file is that comes with the running program: beside it, in the bin folder next to its own (tests), or where
// an installation has it (lib/titan). "" when it is in none of them.
std::string installed_file(const std::string& name);

// Where a daemon keeps its state when it is not told, the same from whatever folder it is started: /var/lib/titan/NAME
// for root, else $XDG_STATE_HOME/titan/NAME or ~/.local/state/titan/NAME. Empty when the user has no home.
std::string default_state_folder(const std::string& name);

// The rule itself.
std::string state_folder_of(bool is_root, const std::string& xdg_state_home, const std::string& home,
                            const std::string& name);

}  // namespace titan::storage
