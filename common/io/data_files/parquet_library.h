#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/parquet_column.h"

namespace titan::data_files {

// Opens the texts in column `text_key` of a Parquet file, or its rows of conversations if `messages_key` is not empty.
// Arrow reads them in titan-parquet.so, which the first call loads. Errors: InvalidArgument for a damaged file or a
// missing column; Unimplemented without the library, for a file that begins and ends as Parquet does; those of the
// disk. All name the file.
absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_column(const std::string& path, const std::string& text_key,
                                                                   const std::string& messages_key);

// Opens one column of texts or bytes; "image.bytes" is the field "bytes" of the structs in the column "image". Errors:
// as above.
absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_values(const std::string& path, const std::string& column);

// Opens those of `columns` that exist, each row as a JSON object; the first has to exist. Bytes are JSON strings with
// the bytes as they are, which json::Reader returns unchanged although they are not UTF-8. Errors: as above.
absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_rows(const std::string& path,
                                                                 const std::vector<std::string>& columns);

}  // namespace titan::data_files
