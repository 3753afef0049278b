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

// Transport security of a program. The files are PEM and are read again when they change.
struct Security {
  std::string ca;         // Authorities that sign the other end's certificate; empty: plaintext.
  std::string cert, key;  // Our own certificate and key.
  bool insecure = false;  // Allows plaintext beyond this machine.
  std::string folder;     // Folder made by `titanctl cluster issue`; see use_folder().

  bool tls() const { return !ca.empty(); }
};

// Fills in the files of `folder` for those not set: ca.crt, and tls.crt with tls.key if they exist. The folder of a
// user with a token has only ca.crt.
void use_folder(Security& security);

// These two make the credentials of every channel and listener of the control plane. Nothing else decides whether
// connections are encrypted. A unix socket is always plaintext.
//
// A channel accepts a server only if its certificate matches the host name and names a controller. A listener requests
// and verifies client certificates but also accepts clients without one; its caller authenticates those.
//
// Errors: InvalidArgument when plaintext would leave this machine, the flags contradict each other, or a file does not
// contain what its flag names; NotFound when the folder of a listener has no tls.crt and tls.key; those of reading the
// files.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(absl::string_view address,
                                                                              const Security& security);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(absl::string_view address,
                                                                            const Security& security);

// Returns whether a secret may be sent to `address`: TLS is on or the address is local.
bool is_private(absl::string_view address, const Security& security);

// Returns credentials for a channel to our own listener. They accept any certificate, so send no secrets over it.
std::shared_ptr<grpc::ChannelCredentials> own_channel(absl::string_view address, const Security& security);
// Returns plaintext credentials, for this machine and for a store on a private network.
std::shared_ptr<grpc::ChannelCredentials> plain_channel();

// Returns a plaintext channel to a controller on this machine, for tests and benchmarks. Keepalive finds a dead peer in
// 15 s, reconnects are quick, and UNAVAILABLE calls are retried a few times.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address);

// Sets the deadline that every unary call must have.
void set_deadline(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace titan::rpc
