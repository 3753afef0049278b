#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data {

// The named datasets: "c4", "c4_test", "c4_validation".
std::vector<std::string> dataset_names();

// The files of a named dataset, in the order in which they are read. `dataset_path` is a folder, a glob or a file; of a
// mirror of allenai/c4 its en/ folder is taken, and of its files those of the dataset's split. Errors: InvalidArgument
// for an unknown name (with the nearest) or a name without a path, NotFound for a path without files.
absl::StatusOr<std::vector<std::string>> dataset_files(const std::string& dataset, const std::string& dataset_path);

// The *.json and *.jsonl files (optionally .gz or .zst) of a folder, of a glob, or the one that `path` is, in name
// order.
absl::StatusOr<std::vector<std::string>> find_dataset_files(const std::string& path);

}  // namespace titan::data
