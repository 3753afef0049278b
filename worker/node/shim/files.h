#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::shim {

absl::StatusOr<std::string> read_file(const std::string& path);

// Replaces a file in one step: a reader, or a new process after a kill, finds the old bytes or the new ones. `durable`
// also holds over a power failure.
absl::Status write_file(const std::string& path, const std::string& bytes, bool durable = false, mode_t mode = 0644);

// A Unix socket in `folder`, bound or connected through /proc/self/fd, so that long folder names do not meet the limit
// of 107 bytes on socket addresses. Both are non-blocking and close on exec.
absl::StatusOr<host::Descriptor> listen_unix(const std::string& folder, const std::string& name);
absl::StatusOr<host::Descriptor> connect_unix(const std::string& folder, const std::string& name);

}  // namespace titan::shim
