#pragma once

#include <string>

namespace titan::text {

// The path with a leading "~" as the user's home ($HOME, or else what the system's users have), and "~NAME" as NAME's:
// as a shell and Python's os.path.expanduser have it. Unchanged where there is no such home. "./~" is a file called
// "~".
std::string expand_home(const std::string& path);

// Whether a shell would expand a part of the path: $NAME or ${NAME} at the beginning of one. Nothing here does.
bool names_variable(const std::string& path);
inline constexpr char kNoVariables[] = "environment variables are not expanded in a configuration";

}  // namespace titan::text
