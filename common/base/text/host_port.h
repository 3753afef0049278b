#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace titan {

// HOST:PORT or [IPV6]:PORT, split at the last colon.
struct HostPort {
  std::string host;        // Not empty; as written, without brackets.
  bool bracketed = false;  // Whether it was written as [HOST].
  int port = 0;            // 0 to 65535.
};

// Returns nothing when `address` has no host or no valid port.
std::optional<HostPort> split_host_port(absl::string_view address);

}  // namespace titan
