#pragma once

#include <string>

namespace titan::text {

// Expands a leading "~" to the user's home ($HOME, else the system's user database) and "~NAME" to NAME's home, as a
// shell and Python's os.path.expanduser do. Returns the path unchanged when there is no such home. "./~" is a file
// called "~".
std::string expand_home(const std::string& path);

// Whether a component of the path begins with $NAME or ${NAME}, which a shell would expand. Titan does not expand
// variables.
bool names_variable(const std::string& path);
inline constexpr char kNoVariables[] = "environment variables are not expanded in a configuration";

}  // namespace titan::text
