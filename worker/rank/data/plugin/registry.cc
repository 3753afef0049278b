#include "worker/rank/data/plugin/registry.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/datasets.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/plugin/plugin.h"
#include "worker/rank/plugin/library.h"

namespace titan::data {
namespace {

using plugin::refuse;

struct Table {
  std::mutex mutex;
  std::set<std::string> libraries;
  std::map<std::string, std::shared_ptr<const LoadedDataset>> datasets;
};

Table& table() {
  static Table& instance = *new Table;
  return instance;
}

// Dataset names become part of file names.
bool is_dataset_name(const std::string& name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

absl::Status check_dataset(const std::string& path, const PluginDataset& dataset) {
  const std::string who = absl::StrCat("dataset \"", dataset.name, "\"");
  if (!is_dataset_name(dataset.name)) {
    return refuse(path, absl::StrCat(who, ": a name has letters, digits, \"-\", \"_\" and \".\", at most 63"));
  }
  if (dataset.open == nullptr) return refuse(path, absl::StrCat(who, " needs a function that opens a file"));
  const std::vector<std::string> titans = data_files::dataset_names();
  if (std::find(titans.begin(), titans.end(), dataset.name) == titans.end()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("experimental.custom_import: ", path, ": there is a dataset \"", dataset.name, "\" already"));
}

// Returns the library's datasets; none if it has only models.
absl::StatusOr<std::vector<PluginDataset>> read_datasets(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const plugin::PluginHeader* head,
                         plugin::open(path, plugin::kDataSymbol, {kDataPluginForm, TITAN_PLUGIN_ABI("")}));
  std::vector<PluginDataset> datasets;
  if (head == nullptr) return datasets;
  try {
    datasets = reinterpret_cast<const DataPlugin*>(head)->datasets();
  } catch (const std::exception& error) {
    return refuse(path, absl::StrCat("its datasets' function threw: ", error.what()));
  } catch (...) {
    return refuse(path, "its datasets' function threw something that is not a std::exception");
  }
  if (datasets.empty()) return refuse(path, "registers no dataset");
  std::set<std::string> names;
  for (const PluginDataset& dataset : datasets) {
    TITAN_RETURN_IF_ERROR(check_dataset(path, dataset));
    if (!names.insert(dataset.name).second) {
      return refuse(path, absl::StrCat("registers dataset \"", dataset.name, "\" twice"));
    }
  }
  return datasets;
}

}  // namespace

absl::Status load_datasets(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::string real, plugin::find(path));
  const std::lock_guard<std::mutex> lock(table().mutex);
  if (table().libraries.contains(real)) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(plugin::try_in_child(real, [&] { static_cast<void>(read_datasets(real)); }));
  TITAN_ASSIGN_OR_RETURN(std::vector<PluginDataset> datasets, read_datasets(real));
  uint32_t sum = 0;
  if (!datasets.empty()) {
    TITAN_ASSIGN_OR_RETURN(const std::string bytes, storage::read_file(storage::posix_files(), real));
    sum = storage::crc32c(bytes.data(), bytes.size());
  }
  for (const PluginDataset& dataset : datasets) {
    const auto there = table().datasets.find(dataset.name);
    if (there == table().datasets.end()) continue;
    return absl::AlreadyExistsError(absl::StrCat("experimental.custom_import: ", real, ": ", there->second->library,
                                                 " has a dataset \"", dataset.name, "\" already"));
  }
  for (PluginDataset& dataset : datasets) {
    std::string name = dataset.name;
    table().datasets.emplace(std::move(name),
                             std::make_shared<LoadedDataset>(LoadedDataset{std::move(dataset), real, sum}));
  }
  table().libraries.insert(real);
  return absl::OkStatus();
}

std::shared_ptr<const LoadedDataset> find_loaded_dataset(const std::string& name) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  const auto found = table().datasets.find(name);
  return found == table().datasets.end() ? nullptr : found->second;
}

std::vector<std::string> loaded_dataset_names() {
  const std::lock_guard<std::mutex> lock(table().mutex);
  std::vector<std::string> names;
  for (const auto& [name, dataset] : table().datasets) names.push_back(name);
  return names;
}

}  // namespace titan::data
