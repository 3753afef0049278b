#pragma once

// Describes who makes a call, with which role, and what each call of titan.v1 needs.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace titan::auth {

// Each may do what those before it may.
enum class Role { kNone, kViewer, kOperator, kAdmin };
absl::string_view name(Role role);

inline constexpr char kAllProjects[] = "*";

// Who makes a call.
struct Caller {
  std::string actor;  // In records and events, one word: "user:alice", "node:n1", "local:1000", "peer:10.0.0.7".
  Role role = Role::kNone;
  std::vector<std::string> projects;  // That the role holds in; "*": all.
  std::string node;                   // Whose session it may open: a node's name, "*" for any; empty: none.

  std::string token;         // Id of the one that it came with; empty: none.
  std::string token_digest;  // Its secret's: another token may have that id by now.
  std::string certificate;   // That its connection began with and those that signed it, in PEM; empty: none.

  // The unix user who they have proven to be, whom their ranks run as where a worker is root; empty: nobody. Either the
  // kernel of this machine said so (`is_local`), or the admin who made their token or certificate.
  std::string unix_user;
  bool is_local = false;

  bool sees(absl::string_view project) const;
  bool sees_all() const;
};

// May do everything.
Caller admin(std::string actor);

// "user:NAME"; empty for what is not a name: 1 to 64 of [A-Za-z0-9._@+-].
std::string user_actor(const std::string& name);
// gRPC's "ipv4:10.0.0.7:40312", "ipv6:%5B::1%5D:40312", "unix:/run/titan.sock" without the port, which says nothing.
std::string peer_address(const std::string& peer);
// "peer:ADDRESS" of the same.
std::string peer_actor(const std::string& peer);

// Of "projects/PROJECT/jobs/ID"; empty when the name has another form.
absl::string_view project_of(absl::string_view job);

// What a call needs.
enum class Need {
  kRead,            // Viewer of the project; of the cluster's own: viewer of any.
  kOperate,         // Operator of the project.
  kOperateCluster,  // Operator of all projects.
  kAdmin,
  kSession,  // The node itself.
};

struct Permission {
  absl::string_view method;  // "JobService.GetJob", of titan.v1.
  Need need;
  bool changes = false;  // Something that lasts: such a call is written down.
};

// Every method of every service of titan.v1 is here: nobody may make a call that is not.
const std::vector<Permission>& permissions();
// Nothing: there is no such method.
std::optional<Permission> permission(absl::string_view method);

}  // namespace titan::auth
