#pragma once

// Recognizes files and folders that are not the requested dataset, and says what to do about them.

#include <string>
#include <string_view>
#include <vector>

namespace titan::data_files {

// Returns what a file is, judged by its first bytes, and how to convert it to text: "UTF-16 (`iconv -f UTF-16 -t UTF-8`
// converts it to UTF-8)". "" when it may be text.
std::string foreign_bytes(std::string_view first_bytes);

// Returns the same, judged by the ending of a name such as "a.jsonl.xz".
std::string foreign_name(std::string_view file);

// Returns whether a file describes the dataset in its folder, as datasets.save_to_disk and hub repositories write it:
// dataset_info*.json, dataset_dict.json, state.json.
bool describes_dataset(const std::string& file);

// Describes what is at `path` instead of a dataset's files, as the end of a sentence: a file of `files` in an
// unsupported format, with how to convert it, or subfolders that hold data files. Returns "" when there is nothing to
// report.
std::string other_files(const std::string& path, const std::vector<std::string>& files);

// Returns a warning that all files of a folder are read although the names of some mark them as held out, such as
// test.jsonl or data-validation-00000.parquet, which Hugging Face's datasets reads as splits. Explains how to leave
// them out. Returns "" when there is nothing to report.
std::string other_splits_warning(const std::string& folder, const std::vector<std::string>& files);

}  // namespace titan::data_files
