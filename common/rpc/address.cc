#include "common/rpc/address.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::rpc {
namespace {

constexpr absl::string_view kNameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_*";
constexpr absl::string_view kIpv6Letters = "0123456789abcdefABCDEF:.%";

bool is_host(absl::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2).find_first_not_of(kIpv6Letters) == absl::string_view::npos;
  }
  return !host.empty() && host.find_first_not_of(kNameLetters) == absl::string_view::npos;
}

bool is_usable(absl::string_view address, Port least) {
  if (absl::StartsWith(address, "unix:")) return address.size() > 5;
  const size_t colon = address.rfind(':');
  int port = -1;
  return colon != absl::string_view::npos && is_host(address.substr(0, colon)) &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= (least == Port::kMayBeFree ? 0 : 1) &&
         port <= 65535;
}

}  // namespace

absl::Status check_address(absl::string_view what, absl::string_view address, Port port) {
  if (is_usable(address, port)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is '", address, "': it must be HOST:PORT (port ",
                                                 port == Port::kMayBeFree ? "0 to 65535; 0: a free one" : "1 to 65535",
                                                 "), [IPV6]:PORT or unix:PATH"));
}

void quiet_grpc_log() { setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0); }

}  // namespace titan::rpc
