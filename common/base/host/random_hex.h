#pragma once

#include <cstddef>
#include <string>

namespace titan::host {

// `bytes` random bytes of the system's generator in hexadecimal, for names that must differ from all others. Aborts
// when the system has no generator.
std::string random_hex(size_t bytes);

}  // namespace titan::host
