#pragma once

// [[training.dataloader.sources]] as a value: from what files and command lines hold, and back.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// A list of tables, or the text of one in JSON as on the command line. Says what is wrong, and in which source.
std::optional<Complaint> read_source_list(const Raw& raw, std::vector<DataSource>& sources);

// Members that are not set are left out.
nlohmann::json source_list_json(const std::vector<DataSource>& sources);

// What the key takes, for messages and help.
std::string source_list_form();

}  // namespace titan::config
