#pragma once

// BlockFiles cuts the files of a kind into blocks, so that a reader can begin at any of them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// How many parts of `part` each make up `size`, the last of which may be smaller.
constexpr int64_t parts_of(int64_t size, int64_t part) { return size / part + (size % part > 0 ? 1 : 0); }

// What a block holds, not tokenised.
struct BlockTexts {
  struct Document {
    int64_t at, line;  // Where it starts; the line of the block.
    DocumentText text;
  };
  std::vector<Document> documents;
  std::vector<int64_t> begins;  // All places of the block where a reader may begin: those of lines, or of rows.
};

// The blocks of files: a document belongs to the block in which it starts, and which blocks there are follows from the
// files' sizes or footers alone. A place of a file is one number here, `at`: bytes of text, rows of Parquet.
class BlockFiles {
 public:
  // What a block has.
  struct Sizes {
    int64_t text_bytes = 32 * 1024;        // Of a file of text;
    int64_t compressed_bytes = 12 * 1024;  // of a compressed one, English comes to as much text;
    int64_t rows = 16;                     // and of Parquet.
  };
  virtual ~BlockFiles() = default;

  virtual int64_t blocks(int64_t file) const = 0;

  // Errors: what the disk says, or InvalidArgument for damaged data.
  virtual absl::StatusOr<BlockTexts> read(int64_t file, int64_t block) = 0;
  // The first place from the block's beginning on where a reader may begin, with the lines between.
  virtual absl::StatusOr<data_files::FilePlace> next_begin(int64_t file, int64_t block) = 0;

  // A place as cursors have it. Errors: InvalidArgument for one that the file has not.
  virtual absl::StatusOr<int64_t> at(int64_t file, const data_files::FilePlace& place) const = 0;
  virtual data_files::FilePlace place(int64_t file, int64_t at, int64_t line) const = 0;
  // The block in which a place lies; the number of all for the end of the file. Errors: those of read(), and
  // InvalidArgument for a place behind the end.
  virtual absl::StatusOr<int64_t> block_of(int64_t file, int64_t at) = 0;
  // Of a document, for people, as DocumentFile::name() has it.
  virtual std::string name(int64_t file, int64_t at, int64_t line) const = 0;

  // Errors: NotFound and what else the disk says; Unimplemented for remote files that are not compressed, or of which
  // the sizes are not known.
  static absl::StatusOr<std::unique_ptr<BlockFiles>> of_lines(const std::vector<std::string>& files,
                                                              const FileKind& kind, const Sizes& sizes);
  static absl::StatusOr<std::unique_ptr<BlockFiles>> of_rows(const std::vector<std::string>& files,
                                                             const FileKind& kind, const Sizes& sizes);
};

}  // namespace titan::data
