#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/host/descriptor.h"

namespace titan::shim {

// A Unix socket in `folder`, bound or connected through /proc/self/fd, so that long folder names do not meet the limit
// of 107 bytes on socket addresses. Both are non-blocking and close on exec.
absl::StatusOr<host::Descriptor> listen_unix(const std::string& folder, const std::string& name);
absl::StatusOr<host::Descriptor> connect_unix(const std::string& folder, const std::string& name);

}  // namespace titan::shim
