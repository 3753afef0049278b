#pragma once

// [[optimizer.param_groups]] as a value: from what files and command lines hold, and back.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// A list of tables, or the text of one in JSON as on the command line. Reads torchtitan's spelling too: optimizer_name,
// and optimizer_kwargs with betas and adjust_lr_fn. Says what is wrong, and in which group.
std::optional<Complaint> read_group_list(const Raw& raw, std::vector<ParamGroup>& groups);

// Members that are not set are left out.
nlohmann::json group_list_json(const std::vector<ParamGroup>& groups);

// What the key takes, for messages and help.
std::string group_list_form();

}  // namespace titan::config
