#pragma once

#include <string>

namespace titan {

// "1.2.3".
std::string version();
// The git revision that this program was built from, twelve digits; "" when it was built outside of a checkout.
std::string revision();
// What `PROGRAM --version` prints: "titanctl 1.2.3 (3b0228e91c5a)".
std::string version_line(const std::string& program);

}  // namespace titan
