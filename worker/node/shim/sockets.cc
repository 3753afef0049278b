#include "worker/node/shim/sockets.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::shim {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

std::string without_brackets(const std::string& address) {
  const bool bracketed = address.size() > 2 && address.front() == '[' && address.back() == ']';
  return bracketed ? address.substr(1, address.size() - 2) : address;
}

// Rejects an empty address, which getaddrinfo() would resolve to the loopback.
absl::StatusOr<Addresses> resolve(const std::string& address, int flags = 0) {
  addrinfo wanted{};
  wanted.ai_flags = flags;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string host = without_brackets(address);
  const int code = host.empty() ? EAI_NONAME : ::getaddrinfo(host.c_str(), "0", &wanted, &found);
  if (code == 0) return Addresses(found, &::freeaddrinfo);
  return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not an address: ", ::gai_strerror(code),
                                                 ". Start titan-worker with --address and an address of this machine"));
}

// Returns the address's bytes in network order; empty for other families.
std::string bytes_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(address);
    return {reinterpret_cast<const char*>(&ipv4->sin_addr), sizeof(ipv4->sin_addr)};
  }
  if (address->sa_family != AF_INET6) return "";
  const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(address);
  return {reinterpret_cast<const char*>(&ipv6->sin6_addr), sizeof(ipv6->sin6_addr)};
}

bool is_any(const sockaddr* address) { return bytes_of(address).find_first_not_of('\0') == std::string::npos; }

bool stays_here(const sockaddr* address) {
  const std::string bytes = bytes_of(address);
  if (bytes.size() == sizeof(in_addr)) return bytes[0] == 127;
  in6_addr ipv6{};
  std::memcpy(&ipv6, bytes.data(), std::min(bytes.size(), sizeof(ipv6)));
  return IN6_IS_ADDR_LOOPBACK(&ipv6) || (IN6_IS_ADDR_V4MAPPED(&ipv6) && ipv6.s6_addr[12] == 127);
}

absl::StatusOr<TcpListener> listen_at(const addrinfo& at) {
  TcpListener result;
  result.socket = host::Descriptor(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.socket) return errno_status(errno, "create a TCP socket");
  // Only the IPv6 wildcard includes IPv4.
  const int only_ipv6 = is_any(at.ai_addr) ? 0 : 1;
  if (at.ai_family == AF_INET6) {
    ::setsockopt(result.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_ipv6, sizeof(only_ipv6));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (::bind(result.socket.get(), at.ai_addr, at.ai_addrlen) != 0 || ::listen(result.socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(result.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return errno_status(errno, "listen on a free TCP port");
  }
  result.port = ntohs(at.ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                               : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return result;
}

absl::Status explain_listen_error(const std::string& address, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("cannot listen on ", address, ": ", std::string(why.message()),
                                               ". Is it an address of this machine? titan-worker --address says where "
                                               "ranks of other nodes reach this one, and --store-address where their "
                                               "store listens if that is another address"));
}

}  // namespace

absl::StatusOr<TcpListener> listen_on(const std::string& address) {
  TITAN_ASSIGN_OR_RETURN(const Addresses found, resolve(address));
  absl::Status why = absl::NotFoundError("nothing was found");
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    absl::StatusOr<TcpListener> listener = listen_at(*at);
    if (listener.ok()) return listener;
    why = listener.status();
  }
  return explain_listen_error(address, why);
}

bool is_wildcard(const std::string& address) {
  const absl::StatusOr<Addresses> found = resolve(address, AI_NUMERICHOST);
  return found.ok() && is_any((*found)->ai_addr);
}

bool is_loopback(const std::string& address) {
  const absl::StatusOr<Addresses> found = resolve(address);
  return found.ok() && stays_here((*found)->ai_addr);
}

std::string interface_of(const std::string& address) {
  const absl::StatusOr<Addresses> found = resolve(address);
  ifaddrs* all = nullptr;
  if (!found.ok() || is_any((*found)->ai_addr) || ::getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(all, &::freeifaddrs);
  const std::string wanted = bytes_of((*found)->ai_addr);
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr != nullptr && bytes_of(at->ifa_addr) == wanted) return at->ifa_name;
  }
  return "";
}

namespace {

struct UnixAddress {
  host::Descriptor folder;
  sockaddr_un address{};
};

absl::StatusOr<UnixAddress> unix_address(const std::string& folder, const std::string& name) {
  UnixAddress result;
  result.folder = host::Descriptor(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!result.folder) return errno_status(errno, absl::StrCat("open folder ", folder));
  const std::string path = absl::StrCat("/proc/self/fd/", result.folder.get(), "/", name);
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path, path.c_str(), path.size() + 1);
  return result;
}

}  // namespace

absl::StatusOr<host::Descriptor> listen_unix(const std::string& folder, const std::string& name) {
  TITAN_ASSIGN_OR_RETURN(const UnixAddress at, unix_address(folder, name));
  host::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(errno, "create a Unix socket");
  ::unlink(at.address.sun_path);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), sizeof(at.address)) != 0 ||
      ::listen(socket.get(), 16) != 0) {
    return errno_status(errno, absl::StrCat("listen on ", folder, "/", name));
  }
  return socket;
}

absl::StatusOr<host::Descriptor> connect_unix(const std::string& folder, const std::string& name) {
  TITAN_ASSIGN_OR_RETURN(const UnixAddress at, unix_address(folder, name));
  host::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(errno, "create a Unix socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), sizeof(at.address)) != 0) {
    return errno_status(errno, absl::StrCat("connect to ", folder, "/", name));
  }
  return socket;
}

}  // namespace titan::shim
