#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/data/documents/block_counts.h"
#include "worker/rank/data/documents/document_blocks.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// The rows and positions of RowStream, for one of many ranks. All ranks share the counting of blocks, and the counts
// show in which block a row starts. A rank tokenizes only the blocks that it counts and those that hold its rows or
// positions.
class CountedRows final : public RowSource {
 public:
  struct Options {
    int64_t row_tokens = 0;
    bool loop = true;
    int64_t max_bad_lines = 100;
    int rank = 0, ranks = 1;
    std::string counts_file;
    absl::Duration timeout = absl::Seconds(1);  // Longest wait for a new count by another rank.
  };
  CountedRows(DocumentBlocks blocks, std::shared_ptr<Tokenizer> tokenizer, const Options& options);

  // Errors: those of DocumentBlocks; InvalidArgument beyond max_bad_lines, when a whole pass has no token, and when a
  // block differs from its count (the dataset has changed).
  absl::StatusOr<const int32_t*> next() override;
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override { return std::exchange(warnings_, {}); }

  int64_t blocks_counted() const { return counts_.counted(); }
  int64_t blocks_read() const { return blocks_read_; }  // Blocks that were tokenized.
  int64_t counts_looked_up() const { return counts_.looked_up(); }

 private:
  // A place in the stream: tokens into a block, and the totals of the pass before that block.
  struct Head {
    int64_t block = 0, token = 0;
    int64_t documents = 0, lines = 0, bad_lines = 0;  // Lines of the file.
    int64_t pass = 0;
    int64_t pass_tokens = 0;  // Tokens of the pass before the block; -1: unknown, because the pass began before a seek.
  };
  absl::Status advance(int64_t tokens);
  absl::Status leave_block(Head& head, const BlockCount& count);
  absl::Status begin_pass();
  absl::Status note_end();
  absl::Status note_bad_lines(const Head& head, const BlockCount& count);
  absl::Status seek_in_file(const StreamPosition& position);
  void set_place(StreamPosition& position, const data_files::FilePlace& place) const;
  absl::StatusOr<int64_t> ahead(int64_t tokens);
  absl::StatusOr<const DocumentBlocks::Block*> block(int64_t number);
  absl::StatusOr<const DocumentBlocks::Block*> read_block(int64_t number);

  DocumentBlocks blocks_;
  const std::shared_ptr<Tokenizer> tokenizer_;
  const Options options_;
  SharedCounts<BlockCount> counts_;
  Head head_;
  bool read_before_ = false;  // False in the first pass.
  bool warned_ = false;
  bool noted_end_ = false;  // Only for a stream that does not loop.
  int64_t blocks_read_ = 0;
  std::vector<int32_t> row_;
  std::vector<std::pair<int64_t, DocumentBlocks::Block>> cache_;  // The blocks read last, with their numbers.
  std::vector<std::string> warnings_;
};

}  // namespace titan::data
