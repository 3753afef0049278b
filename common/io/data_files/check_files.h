#pragma once

// Checks before a job starts whether ranks will find documents in a dataset's files.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/data_files/datasets.h"

namespace titan::data_files {

// How a job reads rows: its dataloader options.
struct RowRules {
  std::string text_key = "text";
  std::string messages_key = {};  // Key of conversations; empty: rows are texts.
  bool train_on_all = false;
  int64_t max_bad_lines = 100;
  std::string text_key_option = "dataloader.text_key";  // The option that sets text_key.
};

// Checks from the first rows of JSON lines whether the ranks of a job will find documents. Ranks call this before they
// begin, titanctl before it queues a job. One good row is enough, with at most max_bad_lines bad rows before it. A file
// that is one JSON array is refused. Reads at most 16 MiB or 10,000 rows and accepts what it has not read. Errors:
// InvalidArgument with the first reasons ("data.jsonl:1: no "text" ..."), or those of the disk.
absl::Status check_first_rows(const DatasetFiles& files, const RowRules& rules);

// Joins the first of many reasons: "a.json:1: not JSON; a.json:2: not JSON; and 98 more".
std::string first_reasons(const std::vector<std::string>& reasons);

// Checks whether ranks will find documents, as far as this is cheap, with the ranks' own readers. Checks the first rows
// of JSON lines (check_first_rows), the first bytes of the first plain text file, or the headers of up to 100 other
// files and that these hold a row or token. Without the Parquet library, checks only the first and last bytes of
// Parquet files. Errors: InvalidArgument, DataLoss or those of the disk, with file and reason.
absl::Status check_files(const DatasetFiles& files, const RowRules& rules);

}  // namespace titan::data_files
