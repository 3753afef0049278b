#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// What a job trains or validates on, as its keys say it: the files in the dataset's order, and how they are read.
struct ConfiguredFiles {
  std::vector<std::string> files;
  FileKind kind;
};
// A dataset that a library brought (load_datasets) is read by it. `record_folder`: where it is written down which
// commit of a hub is read (hub_files); "": nowhere. Errors: those of check_dataset_name() and dataset_files(), and
// hub_files() for a dataset_path of a hub; Unimplemented for what is not streamed; InvalidArgument for keys that a
// library's dataset does not read.
absl::StatusOr<ConfiguredFiles> configured_files(const std::string& dataset,
                                                 const std::optional<std::string>& dataset_path,
                                                 const config::DataLoader& settings, const std::string& record_folder);

// Whether there is such a dataset, of Titan's or of a library that was loaded. InvalidArgument: lists what there is.
absl::Status check_dataset_name(const std::string& dataset);

}  // namespace titan::data
