#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/document_file.h"

namespace titan::data {

// What a block holds, not tokenised.
struct BlockTexts {
  struct Document {
    int64_t at, line;  // Where it starts; the line of the block.
    DocumentText text;
  };
  std::vector<Document> documents;
  std::vector<int64_t> begins;  // All places of the block where a reader may begin: those of lines, or of rows.
};

// How files of a kind are cut into blocks: a document belongs to the block in which it starts, and which blocks there
// are follows from the files' sizes or footers alone. A place of a file is one number here, `at`: bytes of text, rows
// of Parquet.
class BlockFiles {
 public:
  virtual ~BlockFiles() = default;

  virtual int64_t size(int64_t file) const = 0;  // Where a file ends,
  virtual int64_t block_size() const = 0;        // and what a block has of it.

  // The block [begin, end). Errors: what the disk says, or InvalidArgument for damaged data.
  virtual absl::StatusOr<BlockTexts> read(int64_t file, int64_t begin, int64_t end) = 0;
  // The first place from `begin`, a block's, on where a reader may begin, with the lines between.
  virtual absl::StatusOr<FilePlace> next_begin(int64_t file, int64_t begin) = 0;

  // A place as cursors have it. Errors: InvalidArgument for one that the file has not.
  virtual absl::StatusOr<int64_t> at(int64_t file, const FilePlace& place) const = 0;
  virtual FilePlace place(int64_t file, int64_t at, int64_t line) const = 0;
  // Of a document, for people, as DocumentFile::name() has it.
  virtual std::string name(int64_t file, int64_t at, int64_t line) const = 0;

  // Errors: NotFound and what else the disk says.
  static absl::StatusOr<std::unique_ptr<BlockFiles>> of_lines(const std::vector<std::string>& files,
                                                              const FileKind& kind, int64_t block_bytes);
  static absl::StatusOr<std::unique_ptr<BlockFiles>> of_rows(const std::vector<std::string>& files,
                                                             const FileKind& kind, int64_t block_rows);
};

}  // namespace titan::data
