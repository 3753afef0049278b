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

// The rows of documents that are tokenised one after the other.
class RowStream final : public RowSource {
 public:
  RowStream(DocumentReader reader, std::shared_ptr<Tokenizer> tokenizer, int64_t row_tokens, bool loop);

  // Errors: those of the reader; InvalidArgument when a whole pass gives no token.
  absl::StatusOr<const int32_t*> next() override;
  absl::StatusOr<int64_t> skip(int64_t rows) override;
  absl::StatusOr<StreamPosition> position() override;
  absl::Status seek(const StreamPosition& position) override;
  std::vector<std::string> take_warnings() override;

  // The same by torchtitan's numbers: so many documents of the reader's share were read in this pass, and the last
  // `tokens_left` tokens of them are still to come. Reads all of them. InvalidArgument when they are not so many.
  absl::Status seek_behind(int64_t documents, int64_t tokens_left);

 private:
  struct Segment {
    int64_t begin;  // Token number in the stream at which the document starts.
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
  int64_t pass_begin_ = 0;  // The stream's number of this pass's first token; -1: it began before a seek.
  std::vector<std::string> warnings_;
  std::vector<int32_t> tokens_;   // Read and not yet left behind,
  int64_t first_ = 0;             // the stream's number of tokens_[0],
  int64_t head_ = 0;              // and of the next row's first token.
  std::deque<Segment> segments_;  // Documents that reach beyond head_, and the one before.
};

}  // namespace titan::data
