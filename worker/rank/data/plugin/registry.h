#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/data/plugin/dataset.h"

namespace titan::data {

// A dataset, with the library that reads it.
struct LoadedDataset : PluginDataset {
  std::string library;
  uint32_t sum = 0;  // CRC-32C of the library: another one may read other documents of the same files.
};

// Makes a library's datasets known to this process. Once is enough; again does nothing, and a library that has models
// alone has no datasets. Errors: NotFound (no such file), InvalidArgument (not a plug-in, compiled against other
// headers, or a dataset that says nothing), AlreadyExists (a dataset has the name of another, or of one of Titan's).
absl::Status load_datasets(const std::string& path);

// Loaded code belongs to the whole process, so this table does too. Null: there is none of that name.
std::shared_ptr<const LoadedDataset> find_loaded_dataset(const std::string& name);
std::vector<std::string> loaded_dataset_names();

}  // namespace titan::data
