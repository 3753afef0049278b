#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/samples/sample_files.h"

namespace titan::data {

// Finds the files of a named dataset of samples at a hub's path, "hf://datasets/ORG/NAME[@REVISION]/FOLDER", and sets
// the reader of the hub in their kind. `record_folder`: where to record the commit that is read (hub_files); "":
// nowhere. Only tar archives are streamed: their headers are read once for the index, and each sample by its bytes, in
// chunks that the ranks of a node share in a cache. Errors: those of sample_dataset_files(), for an unknown name, and
// of hub_files(); Unimplemented for other files.
absl::StatusOr<SampleFiles> samples_on_hub(const std::string& dataset, const std::string& dataset_path,
                                           SampleFormat format, const std::string& record_folder);

}  // namespace titan::data
