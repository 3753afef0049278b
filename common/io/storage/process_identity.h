#pragma once

#include <string>

namespace titan::storage {

// Returns the identity of this process among all that ever ran: the machine's boot, the PID namespace, the PID and the
// start time. Empty when the kernel does not report them.
std::string process_identity();

// Returns true only when the process with this identity would be visible from here if it were alive, and is not. A
// process of another machine, an earlier boot or another container is never reported as gone.
bool process_has_ended(const std::string& identity);

}  // namespace titan::storage
