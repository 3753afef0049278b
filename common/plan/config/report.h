#pragma once

#include "absl/status/status.h"
#include "common/plan/config/job_config.h"

namespace titan::config {

// What job.print_config and job.save_config_file ask for: the resolved configuration as JSON on standard output, and in
// that file under job.dump_folder. Called by one rank when training starts. Errors: of writing the file.
absl::Status report(const JobConfig& config);

}  // namespace titan::config
