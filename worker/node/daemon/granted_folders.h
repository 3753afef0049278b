#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/node/core/attempt_record.h"

namespace titan::daemon {

inline constexpr char kNotAllowed[] = "FOLDER_NOT_ALLOWED";

// Folders that an operator grants to jobs on this node.
struct Grants {
  std::vector<std::string> folders;         // --allow-folder: dump folders must be below one of these. Empty: anywhere.
  std::vector<std::string> plugin_folders;  // --plugin-folder: the same for model libraries; see plugin_folders().
  bool one_user = false;                    // --rank-user: ranks do not run as the user that submitted them.
};

// Returns the folders that may contain model libraries; none: anywhere. With --rank-user a library runs with another
// user's rights, so the list then applies even if it is empty.
std::optional<std::vector<std::string>> plugin_folders(const Grants& grants);

// Checks the job's folders, and refuses with FOLDER_NOT_ALLOWED. Resolves symbolic links with the rights of this
// thread. `config`: the job's configuration.
node::Refusal check_folders(const node::AttemptRecord& record, const nlohmann::json& config, const Grants& grants);

}  // namespace titan::daemon
