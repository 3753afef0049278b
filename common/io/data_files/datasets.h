#pragma once

// Finds the files of a dataset by its name or path, and their format.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data_files {

// Formats of a dataset's files.
enum class DatasetFormat { kAuto, kJsonLines, kText, kParquet, kMegatron, kTitan, kPlugin };

// Returns a format's value of training.dataloader.format, such as "jsonl"; "" for kPlugin, which a library's dataset
// reads.
const char* name(DatasetFormat format);
std::optional<DatasetFormat> format_from_name(std::string_view name);

// Returns the format that a file's name implies, or nothing. Text and JSON lines may be compressed (.gz or .zst
// appended).
std::optional<DatasetFormat> format_of_file(std::string_view file);

// The file that makes a folder a token index; it is written last.
inline constexpr const char* kTokenManifest = "titan-tokens.json";

// Returns whether the files hold tokens, so that nothing is tokenized.
inline bool holds_tokens(DatasetFormat format) {
  return format == DatasetFormat::kMegatron || format == DatasetFormat::kTitan;
}

// Returns the named datasets: "c4", "c4_test", "c4_validation".
std::vector<std::string> dataset_names();

// Files of one format, in the order in which they are read.
struct DatasetFiles {
  DatasetFormat format = DatasetFormat::kJsonLines;  // Never kAuto.
  std::vector<std::string> files;
  std::string warning = {};  // About held-out files in the folder (other_splits_warning); empty: none.
};

// Returns the files of a named dataset. `dataset_path` is a folder, a glob or a file. From a mirror of allenai/c4, only
// the files of the dataset's split in its en/ folder are used. Errors: InvalidArgument for an unknown name (with the
// nearest), a name without a path, or a hub path (configured_files accepts those); NotFound for a path without files.
absl::StatusOr<DatasetFiles> dataset_files(const std::string& dataset, const std::string& dataset_path,
                                           DatasetFormat format = DatasetFormat::kAuto);

// Files that were found at a path.
struct ListedFiles {
  std::vector<std::string> files;
  bool chosen = false;  // By name or glob: the user decides what they are.
};
// Lists the files of a folder or a glob, or the file `path` or `path`.idx itself; an existing file may have brackets
// and backslashes in its name. Expands "~" to the user's home. Errors: NotFound; InvalidArgument for a hub path; those
// of the disk.
absl::StatusOr<ListedFiles> list_files(const std::string& path);
// Chooses the dataset's files from a list: those of one format and of its split, in name order. Errors: NotFound (names
// the path).
absl::StatusOr<DatasetFiles> choose_files(const std::string& dataset, const std::string& path,
                                          const ListedFiles& listed, DatasetFormat format);

// Lists the files that a library's dataset reads, in name order: from a folder, those with names that end in `ending`.
// Errors: as list_files(); NotFound when there are no such files.
absl::StatusOr<std::vector<std::string>> find_files(const std::string& path, const std::string& ending);

// Returns the files of a folder or a glob, or the file `path` itself, in name order. kAuto decides by the names; among
// several formats it prefers a token index, then JSON lines, Parquet, Megatron-LM's and plain text. From a folder, only
// files with names of the format are used. Files that describe a dataset (foreign_files.h) are left out unless `path`
// names a single file. A token index is the folder of titan-tokens.json. Megatron-LM's NAME.bin and NAME.idx may be
// given as NAME. Errors: as list_files(); NotFound without files of the format.
absl::StatusOr<DatasetFiles> find_dataset_files(const std::string& path, DatasetFormat format = DatasetFormat::kAuto);

}  // namespace titan::data_files
