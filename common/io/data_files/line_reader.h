#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/file_place.h"

namespace titan::data_files {

// The lines of a file, and where they are.
class LineReader {
 public:
  // Errors: as ByteSource; InvalidArgument when no line starts at `place`.
  // `wanted`: the bytes that will be read, about; more can be. `remote`: as ByteSource::open has it.
  static absl::StatusOr<LineReader> open(const std::string& path, const FilePlace& place,
                                         int64_t wanted = int64_t{1} << 20, RemoteFiles* remote = nullptr);
  // Of the bytes from `place` on.
  static LineReader over(const std::string& path, const FilePlace& place, std::unique_ptr<ByteSource> bytes);

  // The next line with its end ("\n"; the last of a file may lack it), valid until the next call. False at the end.
  absl::StatusOr<bool> next(std::string_view& line);

  // Behind the line that next() gave.
  const FilePlace& place() const { return place_; }
  // Its name: "data.json:17".
  std::string name() const;

 private:
  LineReader(std::string path, const FilePlace& place) : path_(std::move(path)), place_(place) {}
  absl::StatusOr<bool> fill();

  std::string path_;
  FilePlace place_;
  size_t chunk_ = 0;  // Bytes that are read together.
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t consumed_ = 0;
};

// Nothing but spaces, and perhaps the byte order mark of UTF-8 before them.
bool blank(std::string_view line);

// InvalidArgument: no line of `file` starts at byte `offset`, where a position in the data is.
absl::Status no_line_at(const std::string& file, int64_t offset);

}  // namespace titan::data_files
