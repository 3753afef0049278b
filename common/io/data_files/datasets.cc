#include "common/io/data_files/datasets.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/home.h"
#include "common/base/text/nearest.h"
#include "common/io/data_files/foreign_files.h"
#include "common/io/hub/names.h"

namespace titan::data_files {
namespace {

constexpr std::pair<DatasetFormat, const char*> kNames[] = {
    {DatasetFormat::kAuto, "auto"},       {DatasetFormat::kJsonLines, "jsonl"},   {DatasetFormat::kText, "text"},
    {DatasetFormat::kParquet, "parquet"}, {DatasetFormat::kMegatron, "megatron"}, {DatasetFormat::kTitan, "titan"}};

constexpr std::pair<std::string_view, DatasetFormat> kEndings[] = {
    {".json", DatasetFormat::kJsonLines}, {".jsonl", DatasetFormat::kJsonLines}, {".txt", DatasetFormat::kText}};

}  // namespace

const char* name(DatasetFormat format) {
  for (const auto& [value, text] : kNames) {
    if (value == format) return text;
  }
  return "";
}

std::optional<DatasetFormat> format_from_name(std::string_view name) {
  for (const auto& [value, text] : kNames) {
    if (name == text) return value;
  }
  return std::nullopt;
}

std::optional<DatasetFormat> format_of_file(std::string_view file) {
  if (file.ends_with(".parquet")) return DatasetFormat::kParquet;
  if (file.ends_with(".idx")) return DatasetFormat::kMegatron;
  if (std::filesystem::path(file).filename() == kTokenManifest) return DatasetFormat::kTitan;
  for (const std::string_view compressed : {".gz", ".zst"}) {
    if (file.ends_with(compressed)) file.remove_suffix(compressed.size());
  }
  for (const auto& [ending, format] : kEndings) {
    if (file.ends_with(ending)) return format;
  }
  return std::nullopt;
}

namespace {

namespace fs = std::filesystem;

// The order of preference of kAuto when a folder holds several formats.
constexpr DatasetFormat kPreference[] = {DatasetFormat::kTitan, DatasetFormat::kJsonLines, DatasetFormat::kParquet,
                                         DatasetFormat::kMegatron, DatasetFormat::kText};

std::string expected_names(DatasetFormat format) {
  switch (format) {
    case DatasetFormat::kJsonLines:
      return "*.json or *.jsonl file (optionally followed by .gz or .zst)";
    case DatasetFormat::kText:
      return "*.txt file (optionally followed by .gz or .zst)";
    case DatasetFormat::kParquet:
      return "*.parquet file";
    case DatasetFormat::kMegatron:
      return "*.idx file with its *.bin";
    case DatasetFormat::kTitan:
      return "titan-tokens.json (titan-data tokenize makes it)";
    case DatasetFormat::kPlugin:
    case DatasetFormat::kAuto:
      break;
  }
  return "*.json, *.jsonl, *.parquet, *.idx, *.txt file (text optionally followed by .gz or .zst), and no "
         "titan-tokens.json";
}

std::vector<std::string> expand_glob(const std::string& pattern) {
  std::vector<std::string> files;
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

// Returns whether an entry is a regular file or a broken link, which the reader then reports.
bool is_file(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_regular_file(error) || !entry.exists(error);
}
// Hidden files such as ._a.jsonl are left by tools and are not data.
bool is_visible_file(const fs::directory_entry& entry) {
  return entry.path().filename().string()[0] != '.' && is_file(entry);
}

absl::StatusOr<std::vector<std::string>> list_folder(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (is_visible_file(*entry)) files.push_back(entry->path().string());
  }
  if (error) return errno_status(error.value(), path);
  return files;
}

// allenai/c4 holds c4-train.00000-of-01024.json.gz next to c4-validation.00000-of-00008.json.gz.
void keep_split(const std::string& split, std::vector<std::string>& files) {
  std::vector<std::string> chosen;
  for (const std::string& file : files) {
    if (absl::StartsWith(fs::path(file).filename().string(), absl::StrCat("c4-", split, "."))) chosen.push_back(file);
  }
  if (!chosen.empty()) files = std::move(chosen);
}

// Explains brackets, if any. A file whose name really has them was found before.
std::string no_match(const std::string& path) {
  return absl::StrCat("dataset_path ", path, ": no file matches this pattern",
                      path.find('[') == std::string::npos
                          ? ""
                          : " (in a pattern [1] stands for the character 1; \\[ stands for a bracket)");
}

// Returns the files that a glob matches. A folder with a finished or unfinished token index stands for the index.
std::vector<std::string> files_of_glob(const std::vector<std::string>& matches) {
  std::vector<std::string> files;
  std::error_code error;
  for (const std::string& match : matches) {
    const std::string index = absl::StrCat(match, "/", kTokenManifest);
    const bool holds_index = fs::exists(index, error) || fs::exists(match + "/titan-tokens.plan.json", error);
    if (holds_index) {
      files.push_back(index);
    } else if (is_file(fs::directory_entry(match, error))) {
      files.push_back(match);
    }
  }
  return files;
}

}  // namespace

absl::StatusOr<ListedFiles> list_files(const std::string& given) {
  const std::string path = text::expand_home(given);
  if (hub::is_hub_path(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": only a job streams files from a hub: download them with titanctl assets get ORG/NAME "
                     "--dataset --include GLOB, and name the folder"));
  }
  std::error_code error;
  if (fs::is_regular_file(path, error)) return ListedFiles{{path}, true};
  if (fs::is_directory(path, error)) {
    TITAN_ASSIGN_OR_RETURN(std::vector<std::string> files, list_folder(path));
    return ListedFiles{std::move(files), false};
  }
  if (path.find_first_of("*?[") != std::string::npos) {
    std::vector<std::string> files = files_of_glob(expand_glob(path));
    if (files.empty()) return absl::NotFoundError(no_match(path));
    return ListedFiles{std::move(files), true};
  }
  if (const std::string index = path + ".idx"; fs::is_regular_file(index, error)) return ListedFiles{{index}, true};
  return absl::NotFoundError(absl::StrCat("dataset_path ", path, ": no such file or folder"));
}

namespace {

// Returns the files whose names imply `format`.
std::vector<std::string> of_format(const std::vector<std::string>& files, DatasetFormat format) {
  std::vector<std::string> chosen;
  for (const std::string& file : files) {
    if (format_of_file(file) == format) chosen.push_back(file);
  }
  return chosen;
}

// Removes the manifests of token indexes, which are not text.
std::vector<std::string> without_indexes(std::vector<std::string> files) {
  std::erase_if(files, [](const std::string& file) { return format_of_file(file) == DatasetFormat::kTitan; });
  return files;
}

// Removes files that describe a dataset, unless the user named exactly one file.
ListedFiles without_descriptions(ListedFiles listed) {
  if (listed.chosen && listed.files.size() == 1) return listed;
  std::erase_if(listed.files, describes_dataset);
  return listed;
}

DatasetFiles choose(const ListedFiles& listed, DatasetFormat format) {
  if (format != DatasetFormat::kAuto) {
    const bool text =
        format == DatasetFormat::kText || format == DatasetFormat::kJsonLines || format == DatasetFormat::kParquet;
    return {format, listed.chosen && text ? without_indexes(listed.files) : of_format(listed.files, format)};
  }
  for (const DatasetFormat candidate : kPreference) {
    std::vector<std::string> files = of_format(listed.files, candidate);
    if (!files.empty()) return {candidate, std::move(files)};
  }
  return {};
}

absl::StatusOr<DatasetFiles> of_one_format(const std::string& path, const ListedFiles& listed, DatasetFormat format) {
  DatasetFiles found = choose(without_descriptions(listed), format);
  if (found.files.empty()) {
    return absl::NotFoundError(absl::StrCat("dataset_path ", path, ": ", "holds no ", expected_names(format),
                                            other_files(path, listed.files)));
  }
  std::sort(found.files.begin(), found.files.end());
  return found;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> find_files(const std::string& path, const std::string& ending) {
  TITAN_ASSIGN_OR_RETURN(const ListedFiles listed, list_files(path));
  std::vector<std::string> files;
  std::error_code error;
  for (const std::string& file : without_indexes(listed.files)) {
    if (is_visible_file(fs::directory_entry(file, error)) && (listed.chosen || absl::EndsWith(file, ending)))
      files.push_back(file);
  }
  if (files.empty()) return absl::NotFoundError(absl::StrCat("dataset_path ", path, ": holds no *", ending, " file"));
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> dataset_names() { return {"c4", "c4_test", "c4_validation"}; }

absl::StatusOr<DatasetFiles> find_dataset_files(const std::string& path, DatasetFormat format) {
  TITAN_ASSIGN_OR_RETURN(const ListedFiles listed, list_files(path));
  return of_one_format(path, listed, format);
}

absl::StatusOr<DatasetFiles> choose_files(const std::string& dataset, const std::string& path,
                                          const ListedFiles& listed, DatasetFormat format) {
  TITAN_ASSIGN_OR_RETURN(DatasetFiles found, of_one_format(path, listed, format));
  if (dataset == "c4") keep_split("train", found.files);
  if (dataset == "c4_validation") keep_split("validation", found.files);
  if (!listed.chosen) found.warning = other_splits_warning(path, found.files);
  return found;
}

absl::StatusOr<DatasetFiles> dataset_files(const std::string& dataset, const std::string& dataset_path,
                                           DatasetFormat format) {
  const std::vector<std::string> known = dataset_names();
  if (std::find(known.begin(), known.end(), dataset) == known.end()) {
    const std::string near = nearest(dataset, known);
    return absl::InvalidArgumentError(absl::StrCat("dataset: unknown value \"", dataset, "\"",
                                                   near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?"),
                                                   " (known: ", absl::StrJoin(known, ", "), ")"));
  }
  if (dataset_path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dataset \"", dataset, "\" has no dataset_path: ",
        dataset == "c4" ? "set it to the folder of a local mirror of allenai/c4, or to hf://datasets/allenai/c4"
                        : "run deploy/bootstrap.sh, which creates it, or set dataset_path or TITAN_ASSETS"));
  }
  std::error_code error;
  const std::string english = absl::StrCat(text::expand_home(dataset_path), "/en");
  const bool mirror = dataset != "c4_test" && fs::is_directory(english, error);
  const std::string& path = mirror ? english : dataset_path;
  TITAN_ASSIGN_OR_RETURN(const ListedFiles listed, list_files(path));
  return choose_files(dataset, path, listed, format);
}

}  // namespace titan::data_files
