#pragma once

// Recognizes files and folders that are not the requested dataset, and says what to do about them.

#include <string>
#include <string_view>
#include <vector>

namespace titan::data_files {

// Says by the first bytes of a file that was taken for text what it is instead, and how to convert it: "UTF-16 (`iconv
// -f UTF-16 -t UTF-8` makes UTF-8 of it)". Returns "" when it may be text.
std::string foreign_bytes(std::string_view first_bytes);

// Says the same by the ending of a name such as "a.jsonl.xz".
std::string foreign_name(std::string_view file);

// Whether a file describes the dataset in its folder, as datasets.save_to_disk and hub repositories write them:
// dataset_info.json, dataset_infos.json, dataset_dict.json, state.json.
bool describes_dataset(const std::string& file);

// Describes what is at `path` instead of a dataset's files, as the end of a sentence: files in an unsupported format,
// with how to convert them, or subfolders that hold the missing files. Returns "" when there is nothing to report.
std::string other_files(const std::string& path, const std::vector<std::string>& files);

// Warns that all files of a folder are read although some names mark them as held out: test.jsonl or
// data-validation-00000.parquet next to others, which Hugging Face's datasets reads as splits. Explains how to leave
// them out. Returns "" when there is nothing to report.
std::string other_splits_warning(const std::string& folder, const std::vector<std::string>& files);

}  // namespace titan::data_files
