#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/data_files/parquet_column.h"

namespace titan::data_files {

// The texts of a Parquet file's column `text_key`; with a `messages_key` its rows of conversations. Arrow reads them,
// in titan-parquet.so, which is loaded with the first file. Errors: InvalidArgument for a file that is damaged or has
// no such column; Unimplemented without the library, for a file that begins and ends as Parquet does; what the disk
// says. All name the file.
absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_column(const std::string& path, const std::string& text_key,
                                                                   const std::string& messages_key);

}  // namespace titan::data_files
