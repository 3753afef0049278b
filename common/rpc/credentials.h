#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace titan::rpc {

// How a program speaks to others.
struct Security {
  bool insecure = false;  // Plainly also beyond this machine.
};

// What every channel and every listener of the control plane is made with: the one place that knows whether connections
// are encrypted. Errors: InvalidArgument when it would be plaintext that leaves this machine.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(absl::string_view address,
                                                                              const Security& security);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(absl::string_view address,
                                                                            const Security& security);

// For what is always plain: within this machine, and a store on a network of its own.
std::shared_ptr<grpc::ChannelCredentials> plain_channel();

}  // namespace titan::rpc
