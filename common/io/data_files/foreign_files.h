#pragma once

// Recognises files and folders that are not the dataset that was asked for, and says what to do about them.

#include <string>
#include <string_view>
#include <vector>

namespace titan::data_files {

// What the first bytes of a file that was taken for text say that it is instead, with what to do about it:
// "UTF-16 (`iconv -f UTF-16 -t UTF-8` makes UTF-8 of it)". Nothing for what may be text.
std::string foreign_bytes(std::string_view first_bytes);

// The same of a name whose ending says so, such as "a.jsonl.xz".
std::string foreign_name(std::string_view file);

// Whether a file describes a dataset that lies beside it, as datasets.save_to_disk and repositories of a hub have them:
// dataset_info.json, dataset_infos.json, dataset_dict.json, state.json.
bool describes_dataset(const std::string& file);

// What lies at `path` instead of a dataset's files, as the end of a sentence: files in a format that is not read, with
// what makes them readable, or folders below that hold what is missing. Nothing when there is nothing to say.
std::string other_files(const std::string& path, const std::vector<std::string>& files);

// The warning that a folder's files are all read although some of their names say that they are held out: test.jsonl
// or data-validation-00000.parquet beside others, which Hugging Face's datasets reads as splits. It says how to leave
// them out. Nothing when there is nothing to say.
std::string other_splits_warning(const std::string& folder, const std::vector<std::string>& files);

}  // namespace titan::data_files
