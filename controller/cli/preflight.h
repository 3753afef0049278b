#pragma once

#include <string>
#include <vector>

#include "common/config/load.h"

namespace titan::cli {

// Looks at the files that a job will need (tokenizer, data sets, initial weights, dump folder), so that a wrong path is
// told by key and value before anything is queued. Cheap: opens the first file of a data set and reads its first line.
std::vector<config::Problem> check_files(const config::Loaded& loaded);

// "; did you mean 'configs/llama3_tiny.toml'?" when the folder holds something with a similar name, else nothing.
std::string nearby_path(const std::string& path);

}  // namespace titan::cli
