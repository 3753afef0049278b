#include "common/service/rpc/address.h"

#include <arpa/inet.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/host_port.h"

namespace titan::rpc {
namespace {

constexpr absl::string_view kNameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_*";
constexpr absl::string_view kIpv6Letters = "0123456789abcdefABCDEF:.%";

bool is_host(const HostPort& address) {
  const absl::string_view letters = address.bracketed ? kIpv6Letters : kNameLetters;
  return absl::string_view(address.host).find_first_not_of(letters) == absl::string_view::npos;
}

bool is_usable(absl::string_view address, Port least) {
  if (absl::StartsWith(address, "unix:")) return address.size() > 5;
  const std::optional<HostPort> parts = split_host_port(address);
  return parts && is_host(*parts) && parts->port >= (least == Port::kMayBeFree ? 0 : 1);
}

}  // namespace

absl::Status check_address(absl::string_view what, absl::string_view address, Port port) {
  if (is_usable(address, port)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is '", address, "': it must be HOST:PORT (port ",
                                                 port == Port::kMayBeFree ? "0 to 65535; 0: a free one" : "1 to 65535",
                                                 "), [IPV6]:PORT or unix:PATH"));
}

bool is_local(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::optional<HostPort> parts = split_host_port(address);
  if (!parts) return false;
  if (parts->host == "localhost" || parts->host == "::1") return true;
  in_addr numbers{};
  return inet_pton(AF_INET, parts->host.c_str(), &numbers) == 1 && ntohl(numbers.s_addr) >> 24 == 127;
}

absl::StatusOr<std::vector<std::string>> split_addresses(absl::string_view what, absl::string_view addresses) {
  const std::vector<std::string> all = absl::StrSplit(addresses, ',');
  for (const std::string& address : all) TITAN_RETURN_IF_ERROR(check_address(what, address));
  return all;
}

void quiet_grpc_log() { setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0); }

}  // namespace titan::rpc
