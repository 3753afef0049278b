#pragma once

#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/service/rpc/identity.h"
#include "controller/auth/caller.h"
#include "controller/auth/socket_owner.h"
#include "controller/auth/tokens.h"
#include "controller/auth/trust.h"
#include "grpcpp/server_context.h"

namespace titan::auth {

struct GateOptions {
  uid_t own = geteuid();  // The controller's user; it and root are admins.
  SocketOwner owner = socket_owner;
  std::string listens;      // Host of --listen. Local clients can be identified only if this is one address.
  bool insecure = false;    // Identifies nobody: anyone who can reach the port is an admin.
  std::string authorities;  // File with certificates of trusted authorities; empty: none.
  CertificateVerifier::Clock now = [] { return absl::Now(); };
};

// Identifies the caller of every call and checks its rights. Each call identifies its caller again, which takes some
// microseconds: gRPC does not report when a connection ends, and its port may belong to another user by then. `tokens`
// outlives the gate.
class Gate {
 public:
  Gate(GateOptions options, const Tokens& tokens)
      : options_(std::move(options)), tokens_(tokens), trust_(options_.authorities, options_.now) {}

  // Sets the port that local clients connect to; needed before the first call.
  void set_port(int port) { port_ = port; }

  // Identifies a caller by a node's certificate, a token, another certificate, or the local user, in this order. With
  // `insecure`, every caller is an admin. Errors: Unauthenticated when the caller cannot be identified,
  // PermissionDenied when it is another user of this machine.
  absl::StatusOr<Caller> identify(const grpc::ServerContextBase& context) const;

  // Checks whether the caller may make this call ("JobService.GetJob") in a project; without a project, in any. Errors:
  // those of identify(), and PermissionDenied.
  absl::StatusOr<Caller> admit(const grpc::ServerContextBase& context, absl::string_view method,
                               absl::string_view project = "") const;

  // Checks whether a caller admitted earlier is still valid, for long calls. Errors: Unauthenticated.
  absl::Status stands(const Caller& caller) const;

 private:
  // Returns nothing without a certificate.
  std::optional<absl::StatusOr<Caller>> certified(const grpc::ServerContextBase& context) const;
  // Returns the unix user at the other end of a connection within this machine. Errors: Unimplemented when the peer is
  // not on loopback or `listens` is not one address; those of `owner`.
  absl::StatusOr<uid_t> owner_of(const std::string& peer) const;
  absl::StatusOr<Caller> identify_local(const grpc::ServerContextBase& context) const;
  // Returns an admin, who has a unix user only if the call comes from this machine and the kernel names that user.
  Caller insecure_caller(const grpc::ServerContextBase& context) const;

  const GateOptions options_;
  const Tokens& tokens_;
  mutable CertificateVerifier trust_;  // Remembers chains that it has verified.
  std::atomic<int> port_{0};
};

// Returns the caller that a certificate names. Errors: Unauthenticated when it names none.
absl::StatusOr<Caller> caller_of(const std::optional<rpc::Identity>& identity);

// Returns the name of a caller that identify() refused: "local:UID" for another user of this machine, else empty.
std::string refused_actor(const absl::Status& refusal);

// Checks whether `caller` may make the call. Errors: PermissionDenied, which says what is needed.
absl::Status check(const Caller& caller, absl::string_view method, absl::string_view project);

}  // namespace titan::auth
