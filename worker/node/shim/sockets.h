#pragma once

// Opens the sockets between processes of a node and of a job: TCP listeners on a free port, and Unix sockets in a
// folder.

#include <string>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::shim {

// A TCP socket listening on a free port of exactly `address`: an IP address of this host, or a name of it. Never on
// more than was asked for: all addresses take their own words, 0.0.0.0 or ::.
struct Listener {
  host::Descriptor socket;
  int port = 0;
};
// Errors: InvalidArgument for a name that nobody knows; else what the kernel said. Both say what to do.
absl::StatusOr<Listener> listen_on(const std::string& address);

// Whether `address` means every address of a host, however it is written ("0" does, too). No name is looked up.
bool is_wildcard(const std::string& address);

// Whether what is sent to `address`, an IP address or a name as this host knows it, stays on this host.
bool is_loopback(const std::string& address);

// The network interface that has `address`; empty when none has it, and for the wildcard.
std::string interface_of(const std::string& address);

// A Unix socket in `folder`, bound or connected through /proc/self/fd, so that long folder names do not meet the limit
// of 107 bytes on socket addresses. Both are non-blocking and close on exec.
absl::StatusOr<host::Descriptor> listen_unix(const std::string& folder, const std::string& name);
absl::StatusOr<host::Descriptor> connect_unix(const std::string& folder, const std::string& name);

}  // namespace titan::shim
