#pragma once

// Opens the sockets between processes of a node and of a job: TCP listeners on a free port, and Unix sockets in a
// folder.

#include <string>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::shim {

// A TCP socket that listens on a free port of exactly `address`: an IP address or name of this host. It never listens
// on more than requested; all addresses require 0.0.0.0 or ::.
struct TcpListener {
  host::Descriptor socket;
  int port = 0;
};
// Errors: InvalidArgument for a name that cannot be resolved; otherwise those of the kernel. Both say what to do.
absl::StatusOr<TcpListener> listen_on(const std::string& address);

// Returns whether `address` means every address of a host, however it is written ("0" is one, too). Resolves no names.
bool is_wildcard(const std::string& address);

// Returns whether traffic to `address`, an IP address or a name as this host resolves it, stays on this host.
bool is_loopback(const std::string& address);

// Returns the network interface that has `address`; empty if none has it, and for the wildcard.
std::string interface_of(const std::string& address);

// Return a Unix socket in `folder`, bound or connected through /proc/self/fd, so that long folder names do not exceed
// the limit of 107 bytes on socket addresses. Both are non-blocking and close-on-exec.
absl::StatusOr<host::Descriptor> listen_unix(const std::string& folder, const std::string& name);
absl::StatusOr<host::Descriptor> connect_unix(const std::string& folder, const std::string& name);

}  // namespace titan::shim
