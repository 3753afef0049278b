#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "common/io/data_files/parquet_column.h"

namespace titan::data {

// What readers of a file's rows share. Arrow throws, and nothing may leave titan-parquet.so that way.
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
        return "no row " + std::to_string(row) + " in a row group " + std::to_string(group);
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
  virtual Read read(std::string& text) = 0;            // As next(), which this may throw out of.
  virtual void go_to(int64_t group, int64_t row) = 0;  // Before group_ and row_ become these, which are there.

  int64_t group_ = 0, row_ = 0;  // Of the next row.
};

// Opens a column; null with a sentence in `problem`.
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
