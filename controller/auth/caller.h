#pragma once

// Describes who makes a call, with which role, and what each call of titan.v1 needs.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace titan::auth {

// Each role includes the ones before it.
enum class Role { kNone, kViewer, kOperator, kAdmin };
absl::string_view name(Role role);

inline constexpr char kAllProjects[] = "*";

// Identity and rights of a caller.
struct Caller {
  std::string actor;  // One word for records and events: "user:alice", "node:n1", "local:1000", "peer:10.0.0.7".
  Role role = Role::kNone;
  std::vector<std::string> projects;  // Projects in which the caller has the role; "*": all.
  std::string node;                   // Node that it may open sessions for, "*" for any; empty: none.

  std::string token;         // Id of the token of the call; empty: none.
  std::string token_digest;  // Digest of that token's secret: another token may have the id by now.
  std::string certificate;   // Certificate of the connection and those that signed it, in PEM; empty: none.

  // Proven unix user, as whom the ranks run where a worker is root; empty: none. Proven by this machine's kernel
  // (`is_local`), or by the admin who made the token or certificate.
  std::string unix_user;
  bool is_local = false;

  bool sees(absl::string_view project) const;
  bool sees_all() const;
};

// Returns a caller that may do everything.
Caller admin(std::string actor);

// Returns "user:NAME", or "" for an invalid name. A name is 1 to 64 of [A-Za-z0-9._@+-].
std::string user_actor(const std::string& name);
// Returns a gRPC peer's address without scheme and port, since the port identifies nobody: "10.0.0.7" for
// "ipv4:10.0.0.7:40312", "[::1]" for "ipv6:%5B::1%5D:40312". "unix:/run/titan.sock" is returned unchanged.
std::string peer_address(const std::string& peer);
// Returns "peer:" and the peer_address().
std::string peer_actor(const std::string& peer);

// Returns the project of "projects/PROJECT/jobs/ID"; empty when the name has another form.
absl::string_view project_of(absl::string_view job);

// Right that a call needs.
enum class Need {
  kRead,            // Viewer of the project; for the cluster's data, viewer of any.
  kOperate,         // Operator of the project.
  kOperateCluster,  // Operator of all projects.
  kAdmin,
  kSession,  // A caller that has a node.
};

struct Permission {
  absl::string_view method;  // Service and method of titan.v1, such as "JobService.GetJob".
  Need need;
  bool changes = false;  // Changes something that lasts: the call goes into the audit log.
};

// Returns every method of every service of titan.v1: a method that is missing here cannot be called.
const std::vector<Permission>& permissions();
// Returns nothing for an unknown method.
std::optional<Permission> permission(absl::string_view method);

}  // namespace titan::auth
