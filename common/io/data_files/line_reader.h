#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/file_place.h"

namespace titan::data_files {

// Reads the lines of a file and reports their places.
class LineReader {
 public:
  // Opens a file at `place`. `wanted`: about how many bytes will be read; more are possible. `remote`: as in
  // ByteSource::open. Errors: those of ByteSource; InvalidArgument when no line starts at `place`.
  static absl::StatusOr<LineReader> open(const std::string& path, const FilePlace& place,
                                         int64_t wanted = int64_t{1} << 20, RemoteFiles* remote = nullptr);
  // Reads lines from bytes that begin at `place`.
  static LineReader over(const std::string& path, const FilePlace& place, std::unique_ptr<ByteSource> bytes);

  // Sets `line` to the next line with its end ("\n"; the last of a file may lack it), valid until the next call.
  // Returns false at the end.
  absl::StatusOr<bool> next(std::string_view& line);

  // Returns the place after the line that next() returned.
  const FilePlace& place() const { return place_; }
  // Returns the name of that line: "data.json:17".
  std::string name() const;

 private:
  LineReader(std::string path, const FilePlace& place) : path_(std::move(path)), place_(place) {}
  absl::StatusOr<bool> fill();

  std::string path_;
  FilePlace place_;
  size_t chunk_ = 0;  // Bytes per read.
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t consumed_ = 0;
};

// Returns whether a line holds only white space, possibly after a UTF-8 byte order mark.
bool blank(std::string_view line);

// Returns InvalidArgument: no line of `file` starts at byte `offset`, where a saved data position is.
absl::Status no_line_at(const std::string& file, int64_t offset);

}  // namespace titan::data_files
