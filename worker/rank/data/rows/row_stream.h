#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// The rows of documents that are tokenized one after the other.
class RowStream final : public RowSource {
 public:
  RowStream(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer, int64_t row_tokens, bool loop);

  // Errors: those of the reader; InvalidArgument when a whole pass has no token.
  absl::StatusOr<const int32_t*> next() override;
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override;

  // Seeks by torchtitan's numbers: `documents` documents of the reader's share were read in this pass, and the last
  // `tokens_left` tokens of them are still to come. Reads all these documents. InvalidArgument if there are fewer.
  absl::Status seek_torchtitan_position(int64_t documents, int64_t tokens_left);

 private:
  struct Segment {
    int64_t begin;  // Index in the stream of the document's first token.
    StreamPosition start;
  };

  absl::StatusOr<bool> append_document();
  absl::StatusOr<int64_t> count_tokens(const StreamPosition& position);
  void warn_of_repeats();
  StreamPosition reader_position() const;

  DocumentReader reader_;
  std::shared_ptr<Tokenizer> tokenizer_;
  int64_t row_tokens_;
  bool loop_;
  int64_t pass_ = 0;
  bool pass_had_tokens_ = false;
  bool warned_of_repeats_ = false;
  int64_t pass_begin_ = 0;  // Index in the stream of this pass's first token; -1: unknown, because the pass began
                            // before a seek.
  std::vector<std::string> warnings_;
  std::vector<int32_t> tokens_;   // Read, but not yet dropped.
  int64_t first_ = 0;             // Index in the stream of tokens_[0].
  int64_t head_ = 0;              // Index in the stream of the next row's first token.
  std::deque<Segment> segments_;  // Documents that reach beyond head_, and the previous one.
};

}  // namespace titan::data
