#include "common/service/metrics/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/text/host_port.h"

namespace titan::metrics {
namespace {

constexpr int kBacklog = 512;  // More than a burst of visitors: the kernel makes the rest of them wait.

// A listening socket, or -1 with errno.
int listen_one(const addrinfo& at) {
  const int socket = ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket, at.ai_addr, at.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0) return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

int port_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  const in_port_t port = at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                                  : reinterpret_cast<const sockaddr_in&>(at).sin_port;
  return ntohs(port);
}

absl::Status cannot(const std::string& address, const char* why) {
  return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", why,
                                             "; choose another port with --metrics-port (0: any)"));
}

}  // namespace

absl::StatusOr<Listener> listen_at(const std::string& address) {
  const std::optional<HostPort> where = split_host_port(address);
  if (!where) return absl::InvalidArgumentError(absl::StrCat("metrics address '", address, "': it must be HOST:PORT"));
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  if (::getaddrinfo(where->host.c_str(), absl::StrCat(where->port).c_str(), &wanted, &found) != 0)
    return cannot(address, "no such host");
  const absl::Cleanup free_them = [found] { ::freeaddrinfo(found); };
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (const int socket = listen_one(*at); socket >= 0) return Listener{socket, port_of(socket)};
  }
  return cannot(address, std::strerror(errno));
}

}  // namespace titan::metrics
