#pragma once

// Interface between titan-parquet.so and the program that loads it. Only standard library types cross it, and nothing
// is thrown.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace titan::data_files {

// Reads the texts of one column of a Parquet file, row by row.
class ParquetColumn {
 public:
  virtual ~ParquetColumn() = default;

  enum class Read { kText, kNull, kMalformed, kEnd, kFailed };
  // Reads the next row's text. kNull: the text is null. kMalformed: the row has no valid text; kFailed: the file is
  // damaged; `text` then holds the reason.
  virtual Read next(std::string& text) = 0;

  // Continues at a row of a row group. Returns what is wrong with that place, or "".
  virtual std::string seek(int64_t group, int64_t row) = 0;

  // Returns the number of rows in each row group.
  virtual std::vector<int64_t> row_groups() const = 0;

  // Return the row group of the next row, and its row in that group.
  virtual int64_t group() const = 0;
  virtual int64_t row() const = 0;
};

// Opens a column, which the caller then owns; returns null, with a sentence in `problem`, on failure.
using OpenParquet = ParquetColumn* (*)(const std::string& path, const std::string& column, std::string& problem);

// Opens whole rows: a row's text is a JSON object of those of `columns` that exist; the first one must exist
// (row_json.h). A row with a value that JSON cannot express is malformed.
using OpenParquetRows = ParquetColumn* (*)(const std::string& path, const std::vector<std::string>& columns,
                                           std::string& problem);

inline constexpr const char* kParquetLibrary = "titan-parquet.so";
inline constexpr const char* kParquetSymbol = "titan_open_parquet_4";  // The number is the version of this header.
inline constexpr const char* kParquetRowsSymbol = "titan_open_parquet_rows_4";

}  // namespace titan::data_files
