#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace titan::rpc {

// Whether gRPC can use `address`: HOST:PORT, [IPV6]:PORT or unix:PATH. `what` names where it comes from ("--listen").
// Port 0, for a free one, is for those who listen. Errors: InvalidArgument, with the forms.
enum class Port { kGiven, kMayBeFree };
absl::Status check_address(absl::string_view what, absl::string_view address, Port port = Port::kGiven);

// Whether what is sent there stays on this machine: a loopback address, localhost or a unix socket.
bool is_local(absl::string_view address);

// Of several controllers, with commas between: "a:7700,b:7700". Never empty. Errors: those of check_address for each.
absl::StatusOr<std::vector<std::string>> split_addresses(absl::string_view what, absl::string_view addresses);

// Turns gRPC's own lines on stderr off unless GRPC_VERBOSITY asks for them: what went wrong comes back as a status.
// Before the first use of gRPC and before any other thread.
void quiet_grpc_log();

}  // namespace titan::rpc
