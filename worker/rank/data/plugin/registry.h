#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/data/plugin/dataset.h"

namespace titan::data {

// A dataset and the library that reads it.
struct LoadedDataset : PluginDataset {
  std::string library;
  uint32_t sum = 0;  // CRC-32C of the library: another build may read other documents from the same files.
};

// Registers a library's datasets in this process. Loading a library again does nothing; a library with only models has
// no datasets. Errors: NotFound (no such file), InvalidArgument (not a plug-in, compiled against other headers, or an
// invalid dataset), AlreadyExists (another library or Titan itself has a dataset of that name).
absl::Status load_datasets(const std::string& path);

// Returns the dataset of that name, or null. The table is global because loaded code belongs to the whole process.
std::shared_ptr<const LoadedDataset> find_loaded_dataset(const std::string& name);
std::vector<std::string> loaded_dataset_names();

}  // namespace titan::data
