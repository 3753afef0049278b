#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace titan::host {

// Returns the file mode creation mask of this process. Reads it from /proc/self/status, because umask(2) cannot read
// without changing it. Errors: NotFound when that file does not report it.
absl::StatusOr<mode_t> current_umask();

// Parses a mask such as "027". Returns nothing for text that is not an octal number of up to four digits, or for a mask
// that would deny the owner access.
std::optional<mode_t> parse_umask(std::string_view octal);

// While this object lives, files that this thread creates have the permissions that `mask` leaves. Other threads are
// not affected. Does nothing without a mask, or in a container that forbids unshare(2), for example by a seccomp
// filter.
class FileMask {
 public:
  explicit FileMask(std::optional<mode_t> mask);
  ~FileMask();
  FileMask(const FileMask&) = delete;
  FileMask& operator=(const FileMask&) = delete;

 private:
  bool changed_;
  mode_t before_ = 0;
};

}  // namespace titan::host
