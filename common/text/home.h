#pragma once

#include <string>

namespace titan::text {

// The path with a leading "~" as the user's home ($HOME, or else what the system's users have), and "~NAME" as NAME's:
// as a shell and Python's os.path.expanduser have it. Unchanged where there is no such home. "./~" is a file called
// "~".
std::string expand_home(const std::string& path);

}  // namespace titan::text
