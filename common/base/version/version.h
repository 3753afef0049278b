#pragma once

#include <string>
#include <utility>
#include <vector>

namespace titan {

inline constexpr char kVersionHelp[] =
    "Print version and revision; with --verbose also what the program was built with";

// "1.2.3".
std::string version();
// The git revision that this program was built from, twelve digits; "" when it was built outside of a checkout.
std::string revision();
// What this program was built from and with, as names and values in the order to show them: commit ("unknown" outside
// of a checkout), build type, compiler, CUDA ("yes" or "no"), and the version of every library that some program of
// this build is linked with.
std::vector<std::pair<std::string, std::string>> build_manifest();
// "titanctl 1.2.3 (3b0228e91c5a)".
std::string version_line(const std::string& program);
// What `PROGRAM --version` prints, without a newline at its end: the line, and the manifest when "--verbose" is among
// `words`.
std::string version_text(const std::string& program, const std::vector<std::string>& words);

}  // namespace titan
