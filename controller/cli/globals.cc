#include "controller/cli/globals.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/rpc/identity.h"

namespace titan::cli {

absl::StatusOr<std::string> read_token(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const absl::Cleanup close_it = [file] {
    if (file >= 0) close(file);
  };
  struct stat about {};
  if (file < 0 || fstat(file, &about) != 0) return errno_status(errno, absl::StrCat("read --token-file ", path));
  if ((about.st_mode & 0077) != 0)
    return absl::PermissionDeniedError(
        absl::StrCat("--token-file ", path,
                     " can be read by others: chmod 600 it, and have the token revoked if others "
                     "may have done so"));
  std::array<char, 512> bytes;
  const ssize_t size = read(file, bytes.data(), bytes.size());
  if (size < 0) return errno_status(errno, absl::StrCat("read --token-file ", path));
  std::string token(absl::StripAsciiWhitespace({bytes.data(), static_cast<size_t>(size)}));
  const bool is_word = token.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (absl::StartsWith(token, rpc::kTokenPrefix) && is_word) return token;
  return absl::InvalidArgumentError(
      absl::StrCat("--token-file ", path, " holds no token: it is one line that `titanctl auth token create` printed"));
}

}  // namespace titan::cli
