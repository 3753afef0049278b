#pragma once

// Reads the bytes of a dataset's file, local or remote, and decompresses .gz and .zst files.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::data_files {

class RemoteFiles;

// Returns whether ByteSource decompresses this file: its name ends with .gz or .zst.
bool is_compressed(const std::string& path);

// Reads a file, decompressed when its name ends with .gz or .zst.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills `buffer` with up to `size` bytes and returns how many; 0 at the end of the file. Errors: InvalidArgument for
  // compressed data that is truncated or damaged (names the file), ResourceExhausted without memory to decompress, or
  // those of the disk or hub.
  virtual absl::StatusOr<size_t> read(char* buffer, size_t size) = 0;

  // Opens the file at `offset` of its decompressed bytes; compressed files are decoded up to there. `remote` provides
  // the file; null: it is on the local disk. Errors: as in read().
  static absl::StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, int64_t offset,
                                                          RemoteFiles* remote = nullptr);
};

// Provides files that are not on a disk of this machine.
class RemoteFiles {
 public:
  virtual ~RemoteFiles() = default;

  // Opens the stored bytes at `offset`: a compressed file is not decompressed.
  virtual absl::StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, int64_t offset) = 0;

  // Returns the stored size in bytes when it is known without a request.
  virtual std::optional<int64_t> size(const std::string&) const { return std::nullopt; }

  // Ends every current and later read and wait with Cancelled. May be called from any thread.
  virtual void stop() = 0;
};

// Decompresses data that arrives in parts, including every gzip member or zstd frame.
class Decompressor {
 public:
  virtual ~Decompressor() = default;

  // Creates one for a file with a name that ends in .gz or .zst. Errors: ResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<Decompressor>> of(const std::string& path);

  // Fills `out` with up to `size` bytes, at least one, and returns how many. Returns 0 when all of `input` was consumed
  // and all its output returned. Removes what it consumed from `input`. Errors: InvalidArgument for damaged data (names
  // the file), ResourceExhausted without memory.
  virtual absl::StatusOr<size_t> decompress(std::string_view& input, char* out, size_t size) = 0;

  // Call this when no more input follows. Errors: InvalidArgument when the data is truncated.
  virtual absl::Status at_end() const = 0;

  // Returns a copy in the same state; null if the format cannot be copied or memory is lacking. Call it only when all
  // input was consumed.
  virtual std::unique_ptr<Decompressor> copy() const { return nullptr; }
};

// Returns the versions of the decompression libraries: other versions may return the same bytes in different parts.
std::string decompressor_versions();

}  // namespace titan::data_files
