#include "common/rank_protocol/rank_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"

namespace titan::rank_protocol {

absl::StatusOr<int> open_rank_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink <= 1) return fd;
  ::close(fd);
  return absl::InvalidArgumentError(absl::StrCat(path, " is not a file that its rank has made: remove it"));
}

}  // namespace titan::rank_protocol
