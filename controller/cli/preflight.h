#pragma once

#include <string>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::cli {

// Checks the files that a job will need (tokenizer, datasets, initial weights, dump folder), so that a wrong path is
// reported by key and value before anything is queued. Cheap: reads the first rows of a dataset, or the headers of its
// files. Adds to `warnings` what the user should know about valid files.
std::vector<config::Problem> check_files(const config::LoadedConfig& loaded, std::vector<std::string>& warnings);

// Returns "; did you mean 'configs/llama3_tiny.toml'?" when the folder holds something with a similar name, else "".
std::string nearby_path(const std::string& path);

}  // namespace titan::cli
