#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/catalog.h"
#include "common/plan/config/raw.h"

namespace titan::config {

struct Overrides {
  std::vector<Setting> settings;
  std::optional<Setting> nodes;  // --nodes M: becomes resources.ranks_per_node when the number of ranks is known.
  bool nproc = false;            // --nproc N was given: the file's placement was meant for the file's number of ranks.
};

// Splits command-line words into settings. Appends to `problems` what is no setting.
Overrides parse_overrides(const std::vector<std::string>& words, const Catalog& catalog,
                          std::vector<Problem>& problems);

}  // namespace titan::config
