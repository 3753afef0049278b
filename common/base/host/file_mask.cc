#include "common/base/host/file_mask.h"

#include <sched.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "common/base/status/status.h"

namespace titan::host {

absl::StatusOr<mode_t> current_umask() {
  std::ifstream status("/proc/self/status");
  std::string name;
  while (status >> name) {
    unsigned mask = 0;
    if (name == "Umask:" && status >> std::oct >> mask) return static_cast<mode_t>(mask);
    std::getline(status, name);
  }
  return errno_status(ENOENT, "read Umask from /proc/self/status");
}

std::optional<mode_t> parse_umask(std::string_view octal) {
  if (octal.empty() || octal.size() > 4) return std::nullopt;
  mode_t mask = 0;
  for (const char digit : octal) {
    if (digit < '0' || digit > '7') return std::nullopt;
    mask = mask * 8 + static_cast<mode_t>(digit - '0');
  }
  return mask <= 077 ? std::optional(mask) : std::nullopt;
}

// The mask, the root and the working folder belong to the whole process until a thread unshares them.
FileMask::FileMask(std::optional<mode_t> mask) : changed_(mask.has_value() && ::unshare(CLONE_FS) == 0) {
  if (changed_) before_ = ::umask(*mask);
}

FileMask::~FileMask() {
  if (changed_) ::umask(before_);
}

}  // namespace titan::host
