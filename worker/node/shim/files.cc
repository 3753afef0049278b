#include "worker/node/shim/files.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host/write_all.h"
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

absl::StatusOr<std::string> read_file(const std::string& path) {
  const host::Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno_status(errno, absl::StrCat("open ", path));
  std::string bytes;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, absl::StrCat("read ", path));
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status write_file(const std::string& path, const std::string& bytes, bool durable, mode_t mode) {
  const std::string fresh = absl::StrCat(path, ".new");
  // No link is followed and nobody is waited for: users write to some of the folders.
  host::Descriptor fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
  if (!fd) return errno_status(errno, absl::StrCat("create ", fresh));
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(fresh, " is there and is no file"));
  absl::Status status = host::write_all(fd.get(), bytes, fresh);
  if (status.ok() && durable && ::fsync(fd.get()) != 0) status = errno_status(errno, absl::StrCat("sync ", fresh));
  if (status.ok() && ::rename(fresh.c_str(), path.c_str()) != 0)
    status = errno_status(errno, absl::StrCat("rename to ", path));
  if (!status.ok()) {
    ::unlink(fresh.c_str());
    return status;
  }
  if (!durable) return absl::OkStatus();
  const size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const host::Descriptor folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return errno_status(errno, absl::StrCat("sync folder ", parent));
  return absl::OkStatus();
}

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
