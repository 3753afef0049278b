#pragma once

#include <compare>
#include <cstdint>

namespace titan::data_files {

// A place between two documents of a file. What the numbers count is the kind's: bytes (decompressed) and lines of
// text, row groups and rows of the next one in Parquet.
struct FilePlace {
  int64_t offset = 0;
  int64_t line = 0;

  auto operator<=>(const FilePlace&) const = default;  // As they follow one another in a file.
};

// Of either number: cursors hold none that is larger.
inline constexpr int64_t kLargestPlace = int64_t{1} << 60;

}  // namespace titan::data_files
