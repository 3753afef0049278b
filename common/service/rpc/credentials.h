#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace titan::rpc {

// How a program speaks to others. The files are PEM, and are read again when they change.
struct Security {
  std::string ca;         // Who signs the certificates of the other end; empty: plaintext.
  std::string cert, key;  // Who we are.
  bool insecure = false;  // Plainly also beyond this machine.
  std::string folder;     // Of `titanctl cluster issue`: use_folder().

  bool tls() const { return !ca.empty(); }
};

// Names the files in `folder` that nothing else names: ca.crt, and tls.crt with tls.key where they are. A user who
// comes with a token has ca.crt alone.
void use_folder(Security& security);

// What every channel and every listener of the control plane is made with: the one place that knows whether connections
// are encrypted. A unix socket is always plain.
//
// A channel takes a server for the controller only if its certificate says so, beside the host's name. A listener asks
// for certificates and checks them, and takes clients without one: who they are is for others to say.
//
// Errors: InvalidArgument when it would be plaintext that leaves this machine, the flags do not go together, or a file
// does not hold what its flag names; those of reading the files.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(absl::string_view address,
                                                                              const Security& security);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(absl::string_view address,
                                                                            const Security& security);

// Whether a secret may be sent there.
bool is_private(absl::string_view address, const Security& security);

// To our own listener, whatever its certificate says: nothing is sent.
std::shared_ptr<grpc::ChannelCredentials> own_channel(absl::string_view address, const Security& security);
// For what is always plain: within this machine, and a store on a network of its own.
std::shared_ptr<grpc::ChannelCredentials> plain_channel();

}  // namespace titan::rpc
