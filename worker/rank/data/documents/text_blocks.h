#pragma once

// Finds the lines of text files by block, in plain, compressed and remote files.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/line_reader.h"
#include "common/io/storage/file.h"

namespace titan::data {

// Returns the start of the first line at or after byte `offset` of an uncompressed file; the file's size if no line
// starts there. Searches up to `end`, and returns `end` if no line starts before it.
absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset,
                                   int64_t end = std::numeric_limits<int64_t>::max());

// Returns whether the line before the one that starts at byte `line` is blank.
absl::StatusOr<bool> line_before_is_blank(const std::string& path, int64_t line);

// Returns a remote file of `size` bytes that can be read at any place. A few streams stay open for consecutive reads.
// A stream that is at most `read_through` bytes before the wanted place reads up to it, instead of opening another one.
// Reads return the errors of RemoteFiles, and DataLoss if the file is shorter.
std::unique_ptr<storage::ReadableFile> remote_bytes(std::shared_ptr<data_files::RemoteFiles> remote,
                                                    const std::string& path, int64_t size, int64_t read_through = 0);

// The lines of one plain or compressed file, by block. A line belongs to the block in which it starts.
class TextBlocks {
 public:
  virtual ~TextBlocks() = default;

  struct Lines {
    data_files::LineReader reader;  // At the start of a line; counts lines from 0.
    int64_t end = 0;                // End of the block, in the text.
    bool goes_on;                   // The line before is not blank. Undefined for JSON lines.
  };
  // Returns a reader at the first line of a block, which can read beyond the block; nothing if no line starts in it.
  // Valid until the next call. Errors: those of ByteSource.
  virtual absl::StatusOr<std::optional<Lines>> lines(int64_t block) = 0;
  // Returns a reader at the first line in or after the block, or at the end of the text if no line starts there. Its
  // `end` is unspecified.
  virtual absl::StatusOr<Lines> lines_from(int64_t block) = 0;
  // Returns the block that holds a byte of the text; the number of all blocks for the byte after the last. Errors:
  // InvalidArgument for a later byte, and those of lines().
  virtual absl::StatusOr<int64_t> block_of(int64_t offset) = 0;
};

// Returns blocks of `block_bytes` in an uncompressed file of `size` bytes. `paragraphs`: whether Lines::goes_on is
// needed.
std::unique_ptr<TextBlocks> plain_text_blocks(const std::string& path, int64_t size, int64_t block_bytes,
                                              bool paragraphs);
// The same for a compressed file: the blocks are pieces of CompressedText. `remote` reads the file; null: it is on
// disk. Errors: NotFound and other errors of the disk; InvalidArgument if it has another size.
absl::StatusOr<std::unique_ptr<TextBlocks>> compressed_text_blocks(const std::string& path, int64_t size,
                                                                   int64_t block_bytes,
                                                                   std::shared_ptr<data_files::RemoteFiles> remote);

}  // namespace titan::data
