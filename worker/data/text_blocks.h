#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/block_counts.h"
#include "worker/data/document_reader.h"
#include "worker/data/tokenizer.h"
#include "worker/data/tokens/tokenizer_mark.h"

namespace titan::data {

// Files of JSON lines cut into blocks of about as many bytes: a line belongs to the block in which it starts. Which
// blocks there are follows from the files' sizes alone.
class TextBlocks {
 public:
  struct Options {
    std::vector<std::string> files;
    std::string text_key = "text";
    int64_t block_bytes = 32 * 1024;
  };
  // Errors: NotFound and what else the disk says.
  static absl::StatusOr<TextBlocks> open(const Options& options);

  int64_t count() const { return first_block_.back(); }
  int64_t file_of(int64_t block) const;
  bool begins_file(int64_t block) const { return first_block_[file_of(block)] == block; }
  int64_t block_of(int64_t file, int64_t offset) const { return first_block_[file] + offset / options_.block_bytes; }
  int64_t first_block(int64_t file) const { return first_block_[file]; }  // Of the file behind the last: count().
  int64_t size(int64_t file) const { return sizes_[file]; }
  const std::vector<std::string>& files() const { return options_.files; }

  // A block, tokenised.
  struct Block {
    struct Document {
      int64_t begin;         // Its first token in `tokens`.
      int64_t offset, line;  // Where it starts: byte of the file, line of the block.
      int64_t bad_before;    // Malformed lines of the block before it.
    };
    struct BadLine {
      int64_t line;
      std::string problem;
    };
    std::vector<int32_t> tokens;
    std::vector<Document> documents;  // Malformed ones and those without tokens, too.
    std::vector<int64_t> lines;       // Where each line starts,
    int64_t end = 0;                  // and what follows the last.
    std::vector<BadLine> bad;
    BlockCount count;
  };
  // Errors: InvalidArgument for what the tokenizer does not take, or what the disk says.
  absl::StatusOr<Block> read(int64_t block, Tokenizer& tokenizer) const;

  // What counts depend on, for the name of their file: other data or another tokenizer has another.
  absl::StatusOr<std::string> fingerprint(const TokenizerMark& tokenizer) const;

 private:
  explicit TextBlocks(Options options) : options_(std::move(options)) {}

  Options options_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> first_block_ = {0};  // Of each file, and the number of all.
};

}  // namespace titan::data
