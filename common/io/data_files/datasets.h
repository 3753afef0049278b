#pragma once

// Finds the files of a dataset, named or at a path, and their format.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data_files {

// What the files of a dataset are.
enum class Format { kAuto, kJsonLines, kText, kParquet, kMegatron, kTitan, kPlugin };

// "jsonl" and so on, as training.dataloader.format has them; kPlugin, what a library's dataset reads, has no name
// there.
const char* name(Format format);
std::optional<Format> format_from_name(std::string_view name);

// What the name of a file says; nothing for a name that says nothing. Text may be compressed (.gz, .zst behind).
std::optional<Format> format_of_file(std::string_view file);

// What makes a folder a token index, last of all.
inline constexpr const char* kTokenManifest = "titan-tokens.json";

// Documents that are tokens already: nothing is tokenised.
inline bool holds_tokens(Format format) { return format == Format::kMegatron || format == Format::kTitan; }

// The named datasets: "c4", "c4_test", "c4_validation".
std::vector<std::string> dataset_names();

// Files of one format, in the order in which they are read.
struct DatasetFiles {
  Format format = Format::kJsonLines;  // Never kAuto.
  std::vector<std::string> files;
  std::string warning = {};  // Of a folder with files that are held out by their names (other_splits_warning).
};

// The files of a named dataset. `dataset_path` is a folder, a glob or a file; of a mirror of allenai/c4 its en/ folder
// is taken, and of its files those of the dataset's split. Errors: InvalidArgument for an unknown name (with the
// nearest), a name without a path or a path of a hub (configured_files takes those), NotFound for a path without files.
absl::StatusOr<DatasetFiles> dataset_files(const std::string& dataset, const std::string& dataset_path,
                                           Format format = Format::kAuto);

// What was found where a path leads.
struct ListedFiles {
  std::vector<std::string> files;
  bool chosen = false;  // By name or glob: the user says what they are.
};
// The files of a folder, what a glob matches, or the one that `path` is, which may hold brackets and backslashes when
// such a file is there. "~" is the home of the user. Errors: NotFound; InvalidArgument for a path of a hub.
absl::StatusOr<ListedFiles> list_files(const std::string& path);
// Of these the dataset's files: of one format, of its split, and in name order. Errors: NotFound (names the path).
absl::StatusOr<DatasetFiles> choose_files(const std::string& dataset, const std::string& path,
                                          const ListedFiles& listed, Format format);

// The same of files that a library's dataset reads: of a folder those with names that end so.
absl::StatusOr<std::vector<std::string>> find_files(const std::string& path, const std::string& ending);

// The files of a folder, of a glob, or the one that `path` is, in name order. kAuto takes what the names say: of files
// of several formats, JSON lines before Parquet before Megatron-LM's before plain text. Of a folder only files with the
// format's names are taken, and of several files none that describes a dataset (foreign_files.h). A token index is the
// folder with its titan-tokens.json; Megatron-LM's files may be named by what .bin and .idx follow.
absl::StatusOr<DatasetFiles> find_dataset_files(const std::string& path, Format format = Format::kAuto);

}  // namespace titan::data_files
