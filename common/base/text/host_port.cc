#include "common/base/text/host_port.h"

#include "absl/strings/numbers.h"

namespace titan {

std::optional<HostPort> split_host_port(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return std::nullopt;
  HostPort parts;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &parts.port) || parts.port < 0 || parts.port > 65535) {
    return std::nullopt;
  }
  absl::string_view host = address.substr(0, colon);
  parts.bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (parts.bracketed) host = host.substr(1, host.size() - 2);
  parts.host = std::string(host);
  return parts;
}

}  // namespace titan
