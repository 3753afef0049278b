#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace titan::metrics {

struct Listener {
  int socket = -1;  // Non-blocking; the caller closes it.
  int port = 0;
};

// Listens at HOST:PORT or [IPV6]:PORT; port 0 takes a free one. Errors: InvalidArgument for another form of address,
// Unavailable when it cannot be listened on, which says why.
absl::StatusOr<Listener> listen_at(const std::string& address);

}  // namespace titan::metrics
