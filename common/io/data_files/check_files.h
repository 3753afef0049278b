#pragma once

#include "absl/status/status.h"
#include "common/io/data_files/datasets.h"
#include "common/io/data_files/first_rows.h"

namespace titan::data_files {

// Whether ranks will find documents, as far as this can be seen cheaply, by the readers of the ranks: the first rows of
// JSON lines (check_first_rows); the first bytes of plain text; of up to a hundred other files the headers, and whether
// they hold anything. Parquet without its library is looked at by its first and last bytes alone. Errors:
// InvalidArgument, DataLoss or what the disk says, with file and reason.
absl::Status check_files(const DatasetFiles& files, const RowRules& rules);

}  // namespace titan::data_files
