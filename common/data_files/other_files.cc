#include "common/data_files/other_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/data_files/data_format.h"
#include "common/data_files/signature.h"

namespace titan::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFolders = 4;
constexpr int kMostEntries = 1000;  // Of a folder below: enough to see what is in it.

bool holds_data(const fs::path& folder) {
  std::error_code error;
  int looked_at = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().string();
    if (format_of_file(file) && !describes_dataset(file)) return true;
    if (!foreign_name(file).empty()) return true;
    if (++looked_at == kMostEntries) break;
  }
  return false;
}

std::vector<std::string> folders_with_data(const std::string& path) {
  std::vector<std::string> folders;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory(error) && holds_data(entry->path())) folders.push_back(entry->path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

bool describes_dataset(const std::string& file) {
  const std::string name = fs::path(file).filename().string();
  if (name == "state.json" || name == "dataset_dict.json") return true;
  return absl::StartsWith(name, "dataset_info") && absl::EndsWith(name, ".json");
}

std::string other_files(const std::string& path, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (const std::string meaning = foreign_name(file); !meaning.empty()) {
      return absl::StrCat("; ", fs::path(file).filename().string(), " is ", meaning);
    }
  }
  std::vector<std::string> folders = folders_with_data(path);
  if (folders.empty()) return "";
  const bool more = folders.size() > kMostFolders;
  folders.resize(std::min(folders.size(), kMostFolders));
  return absl::StrCat("; files of such names are in folders below it, of which one has to be named: ",
                      absl::StrJoin(folders, ", "), more ? ", ..." : "");
}

}  // namespace titan::data
