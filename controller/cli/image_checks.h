#pragma once

// Checks before a job of flux is queued that its ranks will find images, or stored encodings that fit the job.

#include <optional>
#include <string>

#include "common/plan/config/job_config.h"
#include "controller/cli/input_checks.h"

namespace titan::cli {

// Checks the files at `path`, a dataset_path of [training] or [validation], by their names, and of stored encodings the
// manifest's sizes. Opens no image: damaged ones are the ranks' to count. A hub's path is not checked, nor is a format
// that this function does not know. Returns nothing when all is well.
std::optional<DataProblem> check_images(const config::JobConfig& config, const std::string& path,
                                        const config::DataLoaderSection& settings);

}  // namespace titan::cli
