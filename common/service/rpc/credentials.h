#pragma once

// Makes the credentials of the control plane's channels and listeners, and a plain channel for tests and measurements.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
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

// A plain channel to a controller within this machine, for tests and measurements: keepalive that finds a dead peer in
// 15 s, quick reconnects, and calls that found nobody (UNAVAILABLE) repeated a few times.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address);

// Every unary call has a deadline.
void set_deadline(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace titan::rpc
