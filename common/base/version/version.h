#pragma once

#include <string>
#include <utility>
#include <vector>

namespace titan {

inline constexpr char kVersionHelp[] =
    "Print version and revision; with --verbose also what the program was built with";

// Returns the version, such as "1.2.3".
std::string version();
// Returns the git revision that this program was built from, twelve digits; "" when it was built outside a checkout.
std::string revision();
// Returns what this program was built from and with, as names and values in display order: commit ("unknown" outside a
// checkout), build type, compiler, CUDA ("yes" or "no"), and the version of every library that some program of this
// build is linked with.
std::vector<std::pair<std::string, std::string>> build_manifest();
// Returns a line such as "titanctl 1.2.3 (3b0228e91c5a)".
std::string version_line(const std::string& program);
// Returns the output of `PROGRAM --version` without a trailing newline: the line, and the manifest when "--verbose" is
// among `words`.
std::string version_text(const std::string& program, const std::vector<std::string>& words);

}  // namespace titan
