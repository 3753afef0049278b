#pragma once

#include <cstdio>
#include <string>

namespace titan::shim {

// Prints a line about the shim itself to its standard error.
inline void say(const std::string& text) { std::fprintf(stderr, "titan-shim: %s\n", text.c_str()); }

}  // namespace titan::shim
