#include "worker/data/datasets.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status/status.h"
#include "common/text/nearest.h"

namespace titan::data {
namespace {

namespace fs = std::filesystem;

bool is_data_file(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, ".gz")) absl::ConsumeSuffix(&name, ".zst");
  return absl::EndsWith(name, ".json") || absl::EndsWith(name, ".jsonl");
}

std::vector<std::string> expand_glob(const std::string& pattern) {
  std::vector<std::string> files;
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

absl::StatusOr<std::vector<std::string>> list_folder(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    files.push_back(entry->path().string());
  }
  if (error) return errno_status(error.value(), path);
  return files;
}

// allenai/c4 holds c4-train.00000-of-01024.json.gz beside c4-validation.00000-of-00008.json.gz.
void keep_split(const std::string& split, std::vector<std::string>& files) {
  std::vector<std::string> chosen;
  for (const std::string& file : files) {
    if (absl::StartsWith(fs::path(file).filename().string(), absl::StrCat("c4-", split, "."))) chosen.push_back(file);
  }
  if (!chosen.empty()) files = std::move(chosen);
}

}  // namespace

std::vector<std::string> dataset_names() { return {"c4", "c4_test", "c4_validation"}; }

absl::StatusOr<std::vector<std::string>> find_dataset_files(const std::string& path) {
  std::error_code error;
  std::vector<std::string> files;
  if (fs::is_regular_file(path, error)) {
    files = {path};
  } else if (fs::is_directory(path, error)) {
    TITAN_ASSIGN_OR_RETURN(files, list_folder(path));
  } else if (path.find_first_of("*?[") != std::string::npos) {
    files = expand_glob(path);
    if (files.empty()) return absl::NotFoundError(absl::StrCat("dataset_path ", path, ": no file matches"));
  } else {
    return absl::NotFoundError(absl::StrCat("dataset_path ", path, ": no such file or folder"));
  }
  files.erase(std::remove_if(files.begin(), files.end(), [](const std::string& file) { return !is_data_file(file); }),
              files.end());
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("dataset_path ", path, ": holds no *.json or *.jsonl file (optionally with .gz or .zst behind)"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::vector<std::string>> dataset_files(const std::string& dataset, const std::string& dataset_path) {
  const std::vector<std::string> known = dataset_names();
  if (std::find(known.begin(), known.end(), dataset) == known.end()) {
    const std::string near = nearest(dataset, known);
    return absl::InvalidArgumentError(absl::StrCat("dataset: unknown value \"", dataset, "\"",
                                                   near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?"),
                                                   " (known: ", absl::StrJoin(known, ", "), ")"));
  }
  if (dataset_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset \"", dataset, "\" has no dataset_path: ",
                     dataset == "c4" ? "set it to the folder of a local mirror of allenai/c4"
                                     : "run deploy/bootstrap.sh, which makes it, or set dataset_path or TITAN_ASSETS"));
  }
  std::error_code error;
  const std::string english = absl::StrCat(dataset_path, "/en");
  const bool mirror = dataset != "c4_test" && fs::is_directory(english, error);
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> files, find_dataset_files(mirror ? english : dataset_path));
  if (dataset == "c4") keep_split("train", files);
  if (dataset == "c4_validation") keep_split("validation", files);
  return files;
}

}  // namespace titan::data
