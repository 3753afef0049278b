#pragma once

// What titan-parquet.so does for who loads it. Nothing but the standard library passes here, and nothing is thrown.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace titan::data_files {

// The texts of a column of a Parquet file, row after row.
class ParquetColumn {
 public:
  virtual ~ParquetColumn() = default;

  enum class Read { kText, kNull, kMalformed, kEnd, kFailed };
  // The next row's text. kMalformed: the row has none, kFailed: the file is damaged; `text` says why or how.
  virtual Read next(std::string& text) = 0;

  // Continues with a row of a row group. What is wrong with that, or nothing.
  virtual std::string seek(int64_t group, int64_t row) = 0;

  // The rows of each row group.
  virtual std::vector<int64_t> row_groups() const = 0;

  // Of the next row.
  virtual int64_t group() const = 0;
  virtual int64_t row() const = 0;
};

// Opens a column; null with a sentence in `problem`.
using OpenParquet = ParquetColumn* (*)(const std::string& path, const std::string& column, std::string& problem);

// The same of whole rows: a row's text is a JSON object of those of these columns that there are, the first of which
// there has to be (row_json.h). A row with a value that JSON has no form for is malformed.
using OpenParquetRows = ParquetColumn* (*)(const std::string& path, const std::vector<std::string>& columns,
                                           std::string& problem);

inline constexpr const char* kParquetLibrary = "titan-parquet.so";
inline constexpr const char* kParquetSymbol = "titan_open_parquet_4";  // The number is this header's version.
inline constexpr const char* kParquetRowsSymbol = "titan_open_parquet_rows_4";

}  // namespace titan::data_files
