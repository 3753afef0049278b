#pragma once

// Carries out the verb `list`, and lays out its table.

#include <string>
#include <vector>

#include "titan/v1/job.pb.h"

namespace titan::cli {

// Returns the table of `titanctl list`. `wide` adds owner, priority, project and nodes, and cuts nothing. Otherwise the
// last column is cut at the terminal's width, or to 60 columns without a terminal.
std::string list_text(const std::vector<v1::Job>& jobs, bool wide = false);

}  // namespace titan::cli
