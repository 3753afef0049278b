#pragma once

#include <compare>
#include <cstdint>

namespace titan::data_files {

// A place between two documents of a file. The format decides what the numbers count: decompressed bytes and lines in
// text; row groups, and rows of the next group, in Parquet.
struct FilePlace {
  int64_t offset = 0;
  int64_t line = 0;

  auto operator<=>(const FilePlace&) const = default;  // Orders places as they follow one another in a file.
};

// Upper limit of both numbers in cursors.
inline constexpr int64_t kMaxPlace = int64_t{1} << 60;

}  // namespace titan::data_files
