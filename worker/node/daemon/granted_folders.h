#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/node/core/attempt_record.h"

namespace titan::daemon {

inline constexpr char kNotAllowed[] = "FOLDER_NOT_ALLOWED";

// What an operator grants to jobs on this node.
struct Grants {
  std::vector<std::string> folders;         // --allow-folder: dump folders lie below one of these; none: anywhere.
  std::vector<std::string> plugin_folders;  // --plugin-folder: the same for libraries with models.
  bool one_user = false;                    // --rank-user: ranks run as somebody who did not submit them.
};

// Where libraries with models may lie; nothing: anywhere. When jobs run as somebody else than who submits them, a
// library would be that somebody's, so that there must be folders for it.
std::optional<std::vector<std::string>> plugin_folders(const Grants& grants);

// Refuses FOLDER_NOT_ALLOWED. Follows links, with the rights of this thread. `config`: the job's.
node::Refusal check_folders(const node::AttemptRecord& record, const nlohmann::json& config, const Grants& grants);

}  // namespace titan::daemon
