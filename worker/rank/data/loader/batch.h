#pragma once

// Makes microbatches, tensors of tokens and labels, from the rows of a stream.

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/data/rows/mixed_rows.h"

namespace titan::data {

// Names of a text batch's tensors: token ids int64 [batch, seq_len]; labels of the same shape, where -100 is ignored by
// the loss; and the index of each token's document within its row, also of that shape, where each padding token is a
// document by itself. A batch has no documents if a token marks their end.
inline constexpr char kTokens[] = "tokens", kLabels[] = "labels", kDocuments[] = "documents";

// One microbatch and the place after it, or an error.
struct MadeBatch {
  absl::Status status;
  Batch batch;
  MixCursor after;
  std::vector<std::string> warnings;
  double padding = 0;  // Share of padding in the rows of all ranks that this batch is dealt from.
};

// Deals rows of a stream: of every `rows` consecutive rows, this rank gets `batch` rows, starting with row `first`.
class BatchMaker {
 public:
  struct Options {
    int64_t rows = 1, first = 0, batch = 1;
    int64_t seq_len = 0;
    bool pieces = false;                  // Some rows have pieces: labels end with them, and batches have documents.
    std::optional<int32_t> document_end;  // The token that ends a document in rows without pieces.
  };
  BatchMaker(MixedRows stream, const Options& options) : stream_(std::move(stream)), options_(options) {}

  // Makes the next microbatch. Its status is OutOfRange at the end of the stream. In a last, partial batch the missing
  // rows have no labels.
  MadeBatch make();

  const MixedRows& stream() const { return stream_; }
  // Moves the stream to `cursor`, and returns the cursor that the stream then reports.
  absl::StatusOr<MixCursor> seek(const MixCursor& cursor);

 private:
  absl::Status fill(Batch& batch);
  void write(const int32_t* tokens, int64_t row, Batch& batch) const;
  absl::Status end_of_data_error() const;

  MixedRows stream_;
  Options options_;
};

}  // namespace titan::data
