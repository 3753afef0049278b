#pragma once

// Finds the user at the other end of a connection within this machine.

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace titan::auth {

// A TCP connection as its client sees it. Both ends are needed: the same client address and port may also be connected
// to another of the server's addresses.
struct LocalConnection {
  std::string client;  // 127.x.x.x or ::1.
  int client_port = 0;
  std::string server;  // Has the same family.
  int server_port = 0;
};

using SocketOwner = std::function<absl::StatusOr<uid_t>(const LocalConnection&)>;

// Returns the user who made the client's socket, as the kernel reports it (sock_diag, or /proc/net/tcp and tcp6 without
// it). Errors: NotFound when no open socket has these two ends, or its program has closed it: the kernel would then
// name root.
absl::StatusOr<uid_t> socket_owner(const LocalConnection& connection);

// The two methods separately.
absl::StatusOr<uid_t> owner_by_netlink(const LocalConnection& connection);
absl::StatusOr<uid_t> owner_by_table(const LocalConnection& connection, const std::string& folder = "/proc/net");

}  // namespace titan::auth
