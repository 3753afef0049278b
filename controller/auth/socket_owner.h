#pragma once

// Whose program is at the other end of a connection within this machine.

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace titan::auth {

// A TCP connection as its client sees it. Without both ends it is none: anybody may have another one from the same
// address and port to another address of the server's.
struct LocalConnection {
  std::string client;  // 127.x.x.x or ::1.
  int client_port = 0;
  std::string server;  // Of the same family.
  int server_port = 0;
};

using SocketOwner = std::function<absl::StatusOr<uid_t>(const LocalConnection&)>;

// The user who made the client's socket, as the kernel says (sock_diag, or /proc/net/tcp and tcp6 where it has none).
// Errors: NotFound when no open socket has these two ends. One that its program has closed belongs to nobody: the
// kernel would name root, whoever it was.
absl::StatusOr<uid_t> socket_owner(const LocalConnection& connection);

// The two ways by themselves.
absl::StatusOr<uid_t> owner_by_netlink(const LocalConnection& connection);
absl::StatusOr<uid_t> owner_by_table(const LocalConnection& connection, const std::string& folder = "/proc/net");

}  // namespace titan::auth
