#pragma once

// Carries out the verb `list`, and lays out its table.

#include <string>
#include <vector>

#include "titan/v1/job.pb.h"

namespace titan::cli {

// The table of `titanctl list`. `wide` adds owner, priority, project and nodes, and cuts nothing. Otherwise the last
// column ends with the terminal, or is short when there is none.
std::string list_text(const std::vector<v1::Job>& jobs, bool wide = false);

}  // namespace titan::cli
