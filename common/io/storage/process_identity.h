#pragma once

#include <string>

namespace titan::storage {

// Names this process among all that ever ran: the machine's boot, the namespace of process ids, the id and the start
// time. Empty where the kernel does not tell.
std::string process_identity();

// True only when the process that had this identity would be seen from here if it lived, and does not. What ran on
// another machine, before a reboot or in another container is never called gone.
bool certainly_gone(const std::string& identity);

}  // namespace titan::storage
