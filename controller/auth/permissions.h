#pragma once

// What each call needs. Every method of every service of titan.v1 is here: a call that is not, nobody may make.

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace titan::auth {

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

const std::vector<Permission>& permissions();
// Nothing: there is no such method.
std::optional<Permission> permission(absl::string_view method);

}  // namespace titan::auth
