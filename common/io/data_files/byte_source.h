#pragma once

// Reads the bytes of a dataset's file, local or remote, and decompresses those of .gz and .zst files.

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

// Files that are on no disk of this machine.
class RemoteFiles {
 public:
  virtual ~RemoteFiles() = default;

  // The bytes as they are there, positioned at `offset`: a compressed file is not decompressed.
  virtual absl::StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, int64_t offset) = 0;

  // The bytes of one, when that is known without asking for it.
  virtual std::optional<int64_t> size(const std::string&) const { return std::nullopt; }

  // Whatever reads or waits ends with Cancelled, for good. From any thread.
  virtual void stop() = 0;
};

// Decompresses what comes in parts, all members or frames of it.
class Decompressor {
 public:
  virtual ~Decompressor() = default;

  // Of a file whose name ends with .gz or .zst. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Decompressor>> of(const std::string& path);

  // Fills `out` with up to `size` bytes, at least one; 0 when all of `input` is used and all that it comes to was
  // given. Removes from `input` what it used. Errors: InvalidArgument for damaged data (names the file).
  virtual absl::StatusOr<size_t> decompress(std::string_view& input, char* out, size_t size) = 0;

  // When no more input follows. Errors: InvalidArgument when the data is cut short.
  virtual absl::Status at_end() const = 0;

  // The same again, once all of an input was used; null for a format that cannot.
  virtual std::unique_ptr<Decompressor> copy() const { return nullptr; }
};

// Whose they are: other versions may give the same bytes in other parts.
std::string decompressor_versions();

}  // namespace titan::data_files
