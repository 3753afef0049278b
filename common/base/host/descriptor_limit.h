#pragma once

#include <cstdint>

namespace titan::host {

// Raises the limit of open descriptors to the most that this process may have; the usual 1,024 is only what programs
// get that do not ask. What it starts inherits it. Returns the limit; 0 where the system does not tell.
int64_t raise_descriptor_limit();

}  // namespace titan::host
