#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/block_counts.h"
#include "worker/rank/data/documents/block_files.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {

// The blocks of all files of a dataset, numbered in order and tokenized one at a time.
class DocumentBlocks {
 public:
  struct Options {
    std::vector<std::string> files;
    FileKind kind;
    BlockFiles::Sizes sizes = {};
  };
  // Errors: NotFound and other errors of the disk, and those of Parquet.
  static absl::StatusOr<DocumentBlocks> open(const Options& options);

  int64_t count() const { return first_block_.back(); }
  // Returns the number of the file that holds a block.
  int64_t file_of(int64_t block) const;
  bool begins_file(int64_t block) const { return first_block_[file_of(block)] == block; }
  int64_t first_block(int64_t file) const { return first_block_[file]; }  // count() for the file after the last.
  // Returns the block that holds a place of a file; for the file's end, the next file's first block. Errors: those of
  // BlockFiles.
  absl::StatusOr<int64_t> block_of(int64_t file, const data_files::FilePlace& place) const;
  const std::vector<std::string>& files() const { return options_.files; }
  const FileKind& kind() const { return options_.kind; }
  const BlockFiles& places() const { return *places_; }

  // A tokenized block.
  struct Block {
    struct Document {
      int64_t begin;       // Index of its first token in `tokens`.
      int64_t at, line;    // Where it starts, and its line within the block.
      int64_t bad_before;  // Malformed documents before it in the block.
    };
    struct Bad {
      int64_t at, line;
      std::string problem;
    };
    std::vector<int32_t> tokens;
    std::vector<Document> documents;  // Includes malformed ones and those without tokens.
    std::vector<int64_t> begins;      // See BlockTexts.
    std::vector<Bad> bad;
    BlockCount count;
  };
  // Errors: InvalidArgument for text that the tokenizer rejects, and those of the files.
  absl::StatusOr<Block> read(int64_t block, Tokenizer& tokenizer);
  // Returns the place at which a reader resumes in a block without tokens: the start of its first document, or else
  // BlockFiles::next_begin(). Lines count from the first line of the block.
  absl::StatusOr<data_files::FilePlace> begin_of(int64_t block, const Block& read);

  // Returns a text for the name of the counts' file. It differs for other data, another tokenizer and other block
  // sizes.
  absl::StatusOr<std::string> fingerprint(const data_files::TokenizerFingerprint& tokenizer) const;

 private:
  DocumentBlocks(Options options, std::unique_ptr<BlockFiles> places);
  int64_t in_file(int64_t block) const { return block - first_block_[file_of(block)]; }

  Options options_;
  std::unique_ptr<BlockFiles> places_;
  std::vector<int64_t> first_block_ = {0};  // First block of each file, then the number of all blocks.
};

}  // namespace titan::data
