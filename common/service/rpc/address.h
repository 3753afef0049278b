#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rpc {

// check_address() returns OK if gRPC can use `address`: HOST:PORT, [IPV6]:PORT or unix:PATH. `what` names its source
// ("--listen"). Only a listener may use port 0, which selects a free port. Errors: InvalidArgument, listing the forms.
enum class Port { kGiven, kMayBeFree };
absl::Status check_address(absl::string_view what, absl::string_view address, Port port = Port::kGiven);

// Returns whether traffic to `address` stays on this machine: a loopback address, localhost or a unix socket.
bool is_local(absl::string_view address);

// Splits the addresses of several controllers at the commas: "a:7700,b:7700". Never returns an empty list. Errors:
// those of check_address for each.
absl::StatusOr<std::vector<std::string>> split_addresses(absl::string_view what, absl::string_view addresses);

// Turns off gRPC's own lines on stderr unless GRPC_VERBOSITY is set: failures come back as a status. Call it before the
// first use of gRPC and before other threads start.
void quiet_grpc_log();

}  // namespace titan::rpc
