#pragma once

#include <string>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::cli {

// Looks at the files that a job will need (tokenizer, data sets, initial weights, dump folder), so that a wrong path is
// told by key and value before anything is queued. Cheap: reads the first rows of a data set, or the headers of its
// files. What the user should know of files that are fine is added to `warnings`.
std::vector<config::Problem> check_files(const config::Loaded& loaded, std::vector<std::string>& warnings);

// "; did you mean 'configs/llama3_tiny.toml'?" when the folder holds something with a similar name, else nothing.
std::string nearby_path(const std::string& path);

}  // namespace titan::cli
