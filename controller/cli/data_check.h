#pragma once

#include <optional>
#include <string>

#include "common/config/job_config.h"

namespace titan::cli {

// What is wrong with the files of a dataset.
struct DataProblem {
  std::string message;
  bool is_missing = false;  // Nothing is there.
};

// Whether the ranks will find documents where `path` leads, by the code that they use (common/data_files). Nothing for
// a path of a hub, and for what only ranks can look into: Parquet, tokens, the files of a library's dataset.
std::optional<DataProblem> check_data(const std::string& dataset, const std::string& path,
                                      const config::DataLoader& settings);

}  // namespace titan::cli
