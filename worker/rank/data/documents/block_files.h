#pragma once

// BlockFiles divides files of one kind into blocks, so that a reader can begin at any of them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// Returns how many parts of size `part` make up `size`; the last may be smaller.
constexpr int64_t parts_of(int64_t size, int64_t part) { return size / part + (size % part > 0 ? 1 : 0); }

// The content of a block, not tokenized.
struct BlockTexts {
  struct Document {
    int64_t at, line;  // Where it starts, and its line within the block.
    DocumentText text;
  };
  std::vector<Document> documents;
  std::vector<int64_t> begins;  // All places of the block where a reader may begin: starts of lines or rows.
};

// The blocks of files. A document belongs to the block in which it starts. The bounds of blocks depend only on the
// files' sizes or footers. `at` is a place in a file as one number: a byte of text, a row of Parquet.
class BlockFiles {
 public:
  // Size of a block.
  struct Sizes {
    int64_t text_bytes = 32 * 1024;        // In a file of text.
    int64_t compressed_bytes = 12 * 1024;  // In a compressed file; English text has about text_bytes in it.
    int64_t rows = 16;                     // In a Parquet file.
  };
  virtual ~BlockFiles() = default;

  virtual int64_t blocks(int64_t file) const = 0;

  // Errors: those of the disk, or InvalidArgument for damaged data.
  virtual absl::StatusOr<BlockTexts> read(int64_t file, int64_t block) = 0;
  // Returns the first place at or after the block's beginning where a reader may begin; its line counts the lines
  // passed over.
  virtual absl::StatusOr<data_files::FilePlace> next_begin(int64_t file, int64_t block) = 0;

  // Converts a place of a cursor to `at`. Errors: InvalidArgument if the file does not have that place.
  virtual absl::StatusOr<int64_t> at(int64_t file, const data_files::FilePlace& place) const = 0;
  // Converts `at` back to a place. Text keeps `line`, Parquet ignores it.
  virtual data_files::FilePlace place(int64_t file, int64_t at, int64_t line) const = 0;
  // Returns the block that holds a place; blocks() for the end of the file. Errors: those of read(); InvalidArgument
  // for a place after the end.
  virtual absl::StatusOr<int64_t> block_of(int64_t file, int64_t at) = 0;
  // Names a document for messages, like DocumentFile::name().
  virtual std::string name(int64_t file, int64_t at, int64_t line) const = 0;

  // Open files of lines, and of Parquet rows. Remote files have to be compressed lines. Errors: NotFound and other
  // errors of the disk; Unimplemented for remote files with unknown sizes.
  static absl::StatusOr<std::unique_ptr<BlockFiles>> of_lines(const std::vector<std::string>& files,
                                                              const FileKind& kind, const Sizes& sizes);
  static absl::StatusOr<std::unique_ptr<BlockFiles>> of_rows(const std::vector<std::string>& files,
                                                             const FileKind& kind, const Sizes& sizes);
};

}  // namespace titan::data
