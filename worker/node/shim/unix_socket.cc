#include "worker/node/shim/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::shim {
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
