#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace titan::data_files {

class RemoteFiles;

// Whether ByteSource decompresses such a file: its name ends with .gz or .zst.
bool is_compressed(const std::string& path);

// The bytes of a file, decompressed when its name ends with .gz or .zst.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills `buffer` with up to `size` bytes; 0 at the end of the file.
  // Errors: InvalidArgument for compressed data that is cut short or damaged (names the file), or what the disk or hub
  // says.
  virtual absl::StatusOr<size_t> read(char* buffer, size_t size) = 0;

  // Positioned at `offset` of the decompressed bytes. Compressed files are decoded up to there. `remote`: whose file it
  // is; null: the disk's.
  static absl::StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, int64_t offset,
                                                          RemoteFiles* remote = nullptr);
};

}  // namespace titan::data_files
