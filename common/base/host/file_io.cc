#include "common/base/host/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor.h"
#include "common/base/status/status.h"

namespace titan::host {

absl::Status write_all(int descriptor, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_status(errno, absl::StrCat("write ", path));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> read_file(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
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

absl::Status replace_file(const std::string& path, const std::string& bytes, bool durable, mode_t mode) {
  const std::string fresh = absl::StrCat(path, ".new");
  // Does not follow symbolic links or block on a pipe, because users can write to some of these folders.
  Descriptor fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
  if (!fd) return errno_status(errno, absl::StrCat("create ", fresh));
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(fresh, " exists and is not a regular file"));
  absl::Status status = write_all(fd.get(), bytes, fresh);
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
  const Descriptor folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return errno_status(errno, absl::StrCat("sync folder ", parent));
  return absl::OkStatus();
}

}  // namespace titan::host
