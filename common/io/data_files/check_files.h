#pragma once

// Checks before a job starts whether ranks will find documents in a dataset's files.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/data_files/datasets.h"

namespace titan::data_files {

// How a job reads rows, from its keys under dataloader.
struct RowRules {
  std::string text_key = "text";
  std::string messages_key = {};  // Key of conversations; empty: rows are texts.
  bool train_on_all = false;
  int64_t max_bad_lines = 100;
  std::string text_key_option = "dataloader.text_key";  // The option that sets text_key.
};

// Checks by the first rows of JSON lines whether the ranks of a job will find documents. Ranks call this before they
// begin, titanctl before it queues a job. One good row is enough; bad rows before it are counted while training, up to
// max_bad_lines. A file that is one JSON array is refused. Reads 16 MiB at most and does not check what follows.
// Errors: InvalidArgument with the first reasons ("data.jsonl:1: no "text" ..."), or those of the disk.
absl::Status check_first_rows(const DatasetFiles& files, const RowRules& rules);

// Joins the first of many reasons: "a.json:1: not JSON; a.json:2: not JSON; and 98 more".
std::string first_reasons(const std::vector<std::string>& reasons);

// Checks whether ranks will find documents, as far as this is cheap, with the ranks' own readers. Checks the first rows
// of JSON lines (check_first_rows), the first bytes of plain text, and of up to a hundred other files the headers and
// whether they hold anything. Without the Parquet library, only the first and last bytes of such files are checked.
// Errors: InvalidArgument, DataLoss or those of the disk, with file and reason.
absl::Status check_files(const DatasetFiles& files, const RowRules& rules);

}  // namespace titan::data_files
