#include "common/rank_protocol/rank_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::rank_protocol {

absl::StatusOr<int> open_rank_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink <= 1) return fd;
  ::close(fd);
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a file that its rank has made: remove it"));
}

absl::StatusOr<std::string> read_rank_file(const std::string& path, size_t most) {
  TITAN_ASSIGN_OR_RETURN(const int fd, open_rank_file(path, O_RDONLY));
  std::string text(most, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  const int error = errno;
  ::close(fd);
  if (got < 0) return errno_status(error, absl::StrCat("read ", path));
  text.resize(static_cast<size_t>(got));
  return text;
}

}  // namespace titan::rank_protocol
