#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// The data that a job trains or validates on: the files in the dataset's order, and how they are read.
struct ConfiguredFiles {
  std::vector<std::string> files;
  FileKind kind;
};
// Finds the files that the job's keys choose. If a loaded library registered the dataset (load_datasets), the library
// reads them. `record_folder`: where to record the commit that is read from a hub (hub_files); "": nowhere. Errors:
// those of check_dataset_name() and dataset_files(), and those of hub_files() for a dataset_path of a hub;
// Unimplemented for files that cannot be streamed; InvalidArgument for keys that a library's dataset does not support.
absl::StatusOr<ConfiguredFiles> configured_files(const std::string& dataset,
                                                 const std::optional<std::string>& dataset_path,
                                                 const config::DataLoaderSection& settings,
                                                 const std::string& record_folder);

// Checks that Titan or a loaded library has the dataset. InvalidArgument: lists the datasets that exist.
absl::Status check_dataset_name(const std::string& dataset);

}  // namespace titan::data
