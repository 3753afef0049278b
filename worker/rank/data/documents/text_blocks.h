#pragma once

// Finds the lines of a file of text by blocks, in plain, compressed and remote files.

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

// The first line of a file that is not compressed that starts at byte `offset` or behind it; the file's size if none
// does. Nothing is read behind `end`, which stands for all places from there on.
absl::StatusOr<int64_t> line_start(const std::string& path, int64_t offset,
                                   int64_t end = std::numeric_limits<int64_t>::max());

// Whether the line before the one that starts at byte `line` has nothing but spaces.
absl::StatusOr<bool> line_before_is_blank(const std::string& path, int64_t line);

// A remote file of `size` bytes, read at any place: a few streams stay where they are, for reads that follow each
// other. Reads of it end with the errors of RemoteFiles, and with DataLoss when the file ends before.
std::unique_ptr<storage::ReadableFile> remote_bytes(std::shared_ptr<data_files::RemoteFiles> remote,
                                                    const std::string& path, int64_t size);

// The lines of one file by blocks, plain or compressed. A line belongs to the block in which it starts.
class TextBlocks {
 public:
  virtual ~TextBlocks() = default;

  struct Lines {
    data_files::LineReader reader;  // At a line's start; lines are counted from 0 on.
    int64_t end = 0;                // Of the block, in the text.
    bool goes_on;                   // The line before has more than spaces. Not known of JSON lines.
  };
  // From the first line of a block on, also beyond its end; nothing when no line starts in it. Until the next call.
  // Errors: those of ByteSource.
  virtual absl::StatusOr<std::optional<Lines>> lines(int64_t block) = 0;
  // From the first line on that starts in the block or behind it; at the end of the text when none does.
  virtual absl::StatusOr<Lines> lines_from(int64_t block) = 0;
  // The block with that byte of the text, and the number of all blocks for the byte behind the last. Errors:
  // InvalidArgument for a byte behind that, and those of lines().
  virtual absl::StatusOr<int64_t> block_of(int64_t offset) = 0;
};

// Blocks of so many bytes of the file, `size` in all. `paragraphs`: Lines::goes_on is wanted.
std::unique_ptr<TextBlocks> plain_text_blocks(const std::string& path, int64_t size, int64_t block_bytes,
                                              bool paragraphs);
// The same of a compressed file, by pieces of CompressedText. `remote`: whose it is; null: the disk's. Errors: NotFound
// and what else the disk says, InvalidArgument when it has another size.
absl::StatusOr<std::unique_ptr<TextBlocks>> compressed_text_blocks(const std::string& path, int64_t size,
                                                                   int64_t block_bytes,
                                                                   std::shared_ptr<data_files::RemoteFiles> remote);

}  // namespace titan::data
