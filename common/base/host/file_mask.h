#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace titan::host {

// The file mode creation mask of this process. Errors: those of reading /proc/self/status, which asks without changing
// it.
absl::StatusOr<mode_t> current_umask();

// The mask that a text such as "027" names; nothing for a text that is not an octal number of up to four digits, or for
// a mask that would keep the owner out.
std::optional<mode_t> parse_umask(std::string_view octal);

// While it lives, what this thread makes has the permissions that `mask` leaves; other threads keep theirs. Does
// nothing without a mask, and in a container that does not let a thread have a mask of its own (a seccomp filter on
// unshare).
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
