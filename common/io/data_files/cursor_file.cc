#include "common/io/data_files/cursor_file.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"

namespace titan::data_files {
namespace {

// Returns the folder that contains all files, with a trailing slash.
std::string_view common_folder(const std::vector<std::string>& files) {
  std::string_view folder = files.front();
  folder = folder.substr(0, folder.rfind('/') + 1);
  for (const std::string& file : files) {
    const auto differs = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first;
    if (differs == folder.end()) continue;
    folder = folder.substr(0, static_cast<size_t>(differs - folder.begin()));
    folder = folder.substr(0, folder.rfind('/') + 1);
  }
  return folder;
}

// Describes a file; many files may have the same name. `folder` contains all files and `below` is the path in it. Both
// are empty beyond the last file, and for a path that is not UTF-8.
struct CursorFile {
  std::string name, folder, below;
};
CursorFile facts_of(int64_t number, const std::vector<std::string>& files) {
  if (number >= static_cast<int64_t>(files.size())) return {};
  const std::string& file = files[static_cast<size_t>(number)];
  CursorFile facts{.name = std::filesystem::path(file).filename().string()};
  if (!text::is_utf8(file)) return facts;
  const std::string_view folder = common_folder(files);
  facts.folder = std::string(folder);
  facts.below = file.substr(folder.size());
  return facts;
}

}  // namespace

nlohmann::json cursor_file(int64_t file, const std::vector<std::string>& files) {
  const CursorFile facts = facts_of(file, files);
  nlohmann::json json = {{"file_name", facts.name}};
  if (facts.below.empty()) return json;
  json["files_folder"] = facts.folder;
  json["file_path"] = facts.below;
  return json;
}

absl::Status check_cursor_file(const nlohmann::json& cursor, int64_t file, const std::vector<std::string>& files) {
  const CursorFile now = facts_of(file, files);
  const CursorFile saved{cursor.value("file_name", ""), cursor.value("files_folder", ""),
                         cursor.value("file_path", "")};
  const auto changed = [&](const std::string& was, const std::string& is) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataloader state: file ", file, " of the dataset was \"", was, "\" and is \"", is,
                     "\" now: resume with the same dataset, or exclude dataloader from loading"));
  };
  if (saved.name != now.name) return changed(saved.name, now.name);
  if (saved.below.empty() || now.below.empty() || saved.below == now.below) return absl::OkStatus();
  const std::string was = saved.folder + saved.below, is = now.folder + now.below;
  return was == is ? absl::OkStatus() : changed(was, is);
}

}  // namespace titan::data_files
