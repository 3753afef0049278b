#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_config.h"
#include "worker/data/document_file.h"

namespace titan::data {

// What a job trains or validates on, as its keys say it: the files in the dataset's order, and how they are read.
struct ConfiguredFiles {
  std::vector<std::string> files;
  FileKind kind;
};
// `record_folder`: where it is written down which commit of a hub is read (hub_files); "": nowhere.
// Errors: those of dataset_files(), and hub_files() for a dataset_path of a hub; Unimplemented for what is not
// streamed.
absl::StatusOr<ConfiguredFiles> configured_files(const std::string& dataset,
                                                 const std::optional<std::string>& dataset_path,
                                                 const config::DataLoader& settings, const std::string& record_folder);

}  // namespace titan::data
