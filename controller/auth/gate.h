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
  uid_t own = geteuid();  // The controller's own user: an admin, as root is.
  SocketOwner owner = socket_owner;
  std::string listens;      // On this host, as of --listen. The kernel is asked about clients of one address alone.
  bool insecure = false;    // Nobody is asked who they are: whoever reaches the port is an admin.
  std::string authorities;  // File of those that sign certificates; empty: there are none.
  Trust::Clock now = [] { return absl::Now(); };
};

// What every call passes first. Who calls is asked for each call, which takes some microseconds: gRPC does not tell
// when a connection ends, and its port may be another user's by then.
class Gate {
 public:
  Gate(GateOptions options, const Tokens& tokens)
      : options_(std::move(options)), tokens_(tokens), trust_(options_.authorities, options_.now) {}

  // The port that clients within this machine are connected to; before the first call.
  void set_port(int port) { port_ = port; }

  // By a node's certificate, a token, another certificate, or being on this machine, in this order.
  // Errors: Unauthenticated when it cannot be told who calls, PermissionDenied when it is another user of this machine.
  absl::StatusOr<Caller> identify(const grpc::ServerContextBase& context) const;

  // Whether the caller may make this call ("JobService.GetJob") in a project; without one, in any. Errors: those of
  // identify(), and PermissionDenied.
  absl::StatusOr<Caller> admit(const grpc::ServerContextBase& context, absl::string_view method,
                               absl::string_view project = "") const;

  // Whether who came in earlier still may, for calls that last. Errors: Unauthenticated.
  absl::Status stands(const Caller& caller) const;

 private:
  // Nothing: there is no certificate.
  std::optional<absl::StatusOr<Caller>> certified(const grpc::ServerContextBase& context) const;
  // Which unix user is at the other end, if that is within this machine and can be told.
  absl::StatusOr<uid_t> owner_of(const std::string& peer) const;
  absl::StatusOr<Caller> identify_local(const grpc::ServerContextBase& context) const;
  // Whoever reaches an insecure port: as which unix user, only if they are on this machine.
  Caller anybody(const grpc::ServerContextBase& context) const;

  const GateOptions options_;
  const Tokens& tokens_;
  mutable Trust trust_;  // It remembers what it has seen.
  std::atomic<int> port_{0};
};

// Of a certificate. Errors: Unauthenticated for one that names nobody who calls.
absl::StatusOr<Caller> caller_of(const std::optional<rpc::Identity>& identity);

// What is known of a caller whom identify() refused: "local:UID" of another user of this machine, or empty.
std::string stranger(const absl::Status& refusal);

// Whether `caller` may make the call. Errors: PermissionDenied, which says what is needed.
absl::Status check(const Caller& caller, absl::string_view method, absl::string_view project);

}  // namespace titan::auth
