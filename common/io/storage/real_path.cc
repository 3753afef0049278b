#include "common/io/storage/real_path.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::storage {

absl::StatusOr<std::string> real_path_of(int fd) {
  char text[PATH_MAX];
  const ssize_t size = ::readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), text, sizeof(text));
  if (size < 0) return errno_status(errno, "read the path of an open file");
  return std::string(text, static_cast<size_t>(size));
}

absl::StatusOr<std::string> real_path(const std::string& path) {
  if (path.empty() || path[0] != '/')
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is not an absolute path"));
  // Not lexically: a/.. is the parent of the folder that a leads to.
  std::filesystem::path there = path;
  std::filesystem::path rest;
  for (;;) {
    const int fd = ::open(there.c_str(), O_PATH | O_CLOEXEC);
    if (fd >= 0) {
      const absl::Cleanup close_it = [fd] { ::close(fd); };
      TITAN_ASSIGN_OR_RETURN(const std::string real, real_path_of(fd));
      return rest.empty() ? real : (std::filesystem::path(real) / rest).string();
    }
    if (errno != ENOENT || there == there.root_path()) return errno_status(errno, absl::StrCat("look at ", path));
    const std::filesystem::path name = there.filename();
    if (name == ".." || name == ".")
      return absl::InvalidArgumentError(absl::StrCat("'", path, "' has .. after a missing folder"));
    if (!name.empty()) rest = rest.empty() ? name : name / rest;
    there = there.parent_path();
  }
}

bool lies_below(const std::string& real, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(), [&real](const std::string& folder) {
    const absl::StatusOr<std::string> above = real_path(folder);
    return above.ok() && (real == *above || absl::StartsWith(real, *above == "/" ? *above : absl::StrCat(*above, "/")));
  });
}

}  // namespace titan::storage
