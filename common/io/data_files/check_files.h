#pragma once

// Checks whether ranks will find documents in a dataset's files, before a job starts.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/data_files/datasets.h"

namespace titan::data_files {

// How a job reads rows, as its keys under dataloader say it.
struct RowRules {
  std::string text_key = "text";
  std::string messages_key = {};  // Of conversations; nothing: rows are texts.
  bool train_on_all = false;
  int64_t max_bad_lines = 100;
  std::string text_key_option = "dataloader.text_key";  // Where the user sets text_key.
};

// Whether the ranks of a job will find documents, by the first rows of JSON lines: ranks ask this before they begin,
// and titanctl before anything is queued. One good row is enough; bad ones before it are counted while training, up to
// max_bad_lines. A file that is one JSON array is refused. Cheap: reads 16 MiB at most, and says nothing of what comes
// after. Errors: InvalidArgument with the first reasons ("data.jsonl:1: no "text" ..."), or what the disk says.
absl::Status check_first_rows(const DatasetFiles& files, const RowRules& rules);

// The first of many reasons as one: "a.json:1: not JSON; a.json:2: not JSON; and 98 more".
std::string first_reasons(const std::vector<std::string>& reasons);

// Whether ranks will find documents, as far as this can be seen cheaply, by the readers of the ranks: the first rows of
// JSON lines (check_first_rows); the first bytes of plain text; of up to a hundred other files the headers, and whether
// they hold anything. Parquet without its library is looked at by its first and last bytes alone. Errors:
// InvalidArgument, DataLoss or what the disk says, with file and reason.
absl::Status check_files(const DatasetFiles& files, const RowRules& rules);

}  // namespace titan::data_files
