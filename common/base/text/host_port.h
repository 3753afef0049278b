#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace titan {

// HOST:PORT or [IPV6]:PORT, cut at the last colon.
struct HostPort {
  std::string host;        // Without brackets; not empty, and otherwise as it was written.
  bool bracketed = false;  // [HOST]
  int port = 0;            // 0 to 65535.
};

// Nothing when `address` has no host or no such port.
std::optional<HostPort> split_host_port(absl::string_view address);

}  // namespace titan
