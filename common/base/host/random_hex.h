#pragma once

#include <cstddef>
#include <string>

namespace titan::host {

// Returns `bytes` random bytes from the system's generator as hexadecimal, for names that must be unique. Aborts when
// the system has no generator.
std::string random_hex(size_t bytes);

}  // namespace titan::host
