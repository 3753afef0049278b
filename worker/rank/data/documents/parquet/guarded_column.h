#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "common/io/data_files/parquet_column.h"

namespace titan::data {

// Common base of the readers of rows. Arrow throws, and no exception may leave titan-parquet.so.
class GuardedColumn : public data_files::ParquetColumn {
 public:
  Read next(std::string& text) final {
    try {
      return read(text);
    } catch (const std::exception& error) {
      text = error.what();
      return Read::kFailed;
    }
  }

  std::string seek(int64_t group, int64_t row) final {
    try {
      if (group < 0 || group > groups() || row < 0 || row > (group < groups() ? rows(group) : 0)) {
        return "no row " + std::to_string(row) + " in row group " + std::to_string(group);
      }
      go_to(group, row);
      group_ = group;
      row_ = row;
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  std::vector<int64_t> row_groups() const final {
    std::vector<int64_t> all;
    for (int64_t group = 0; group < groups(); ++group) all.push_back(rows(group));
    return all;
  }

  int64_t group() const final { return group_; }
  int64_t row() const final { return row_; }

 protected:
  virtual int64_t groups() const = 0;
  virtual int64_t rows(int64_t group) const = 0;
  virtual Read read(std::string& text) = 0;            // Like next(), but may throw.
  virtual void go_to(int64_t group, int64_t row) = 0;  // Called before group_ and row_ are set to this row, which
                                                       // exists.

  int64_t group_ = 0, row_ = 0;  // Place of the next row.
};

// Opens a column; null with a message in `problem` on failure.
template <typename Column, typename... Arguments>
data_files::ParquetColumn* open_guarded(std::string& problem, const Arguments&... arguments) {
  try {
    return new Column(arguments...);
  } catch (const std::exception& error) {
    problem = error.what();
    return nullptr;
  }
}

}  // namespace titan::data
