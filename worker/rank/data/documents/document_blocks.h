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

// The blocks of all files of a dataset, numbered in their order, and tokenised one at a time.
class DocumentBlocks {
 public:
  struct Options {
    std::vector<std::string> files;
    FileKind kind;
    BlockFiles::Sizes sizes = {};
  };
  // Errors: NotFound and what else the disk says, and those of Parquet.
  static absl::StatusOr<DocumentBlocks> open(const Options& options);

  int64_t count() const { return first_block_.back(); }
  int64_t file_of(int64_t block) const;
  bool begins_file(int64_t block) const { return first_block_[file_of(block)] == block; }
  int64_t first_block(int64_t file) const { return first_block_[file]; }  // Of the file behind the last: count().
  // With that place of the file; the next file's first for its end. Errors: those of BlockFiles.
  absl::StatusOr<int64_t> block_of(int64_t file, const data_files::FilePlace& place) const;
  const std::vector<std::string>& files() const { return options_.files; }
  const FileKind& kind() const { return options_.kind; }
  const BlockFiles& places() const { return *places_; }

  // A block, tokenised.
  struct Block {
    struct Document {
      int64_t begin;       // Its first token in `tokens`.
      int64_t at, line;    // Where it starts; the line of the block.
      int64_t bad_before;  // Malformed documents of the block before it.
    };
    struct Bad {
      int64_t at, line;
      std::string problem;
    };
    std::vector<int32_t> tokens;
    std::vector<Document> documents;  // Malformed ones and those without tokens, too.
    std::vector<int64_t> begins;      // As BlockTexts has them.
    std::vector<Bad> bad;
    BlockCount count;
  };
  // Errors: InvalidArgument for what the tokenizer does not take, and those of the files.
  absl::StatusOr<Block> read(int64_t block, Tokenizer& tokenizer);
  // Of a block without tokens: from where on a reader goes on, with lines counted from the block's first on.
  absl::StatusOr<data_files::FilePlace> begin_of(int64_t block, const Block& read);

  // What counts depend on, for the name of their file: other data or another tokenizer has another.
  absl::StatusOr<std::string> fingerprint(const data_files::TokenizerFingerprint& tokenizer) const;

 private:
  DocumentBlocks(Options options, std::unique_ptr<BlockFiles> places);
  int64_t in_file(int64_t block) const { return block - first_block_[file_of(block)]; }

  Options options_;
  std::unique_ptr<BlockFiles> places_;
  std::vector<int64_t> first_block_ = {0};  // Of each file, and the number of all.
};

}  // namespace titan::data
