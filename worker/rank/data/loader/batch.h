#pragma once

// Makes microbatches, tensors of tokens and labels, from the rows of a stream.

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/rows/mixed_rows.h"

namespace titan::data {

// A microbatch of one data-parallel rank.
struct Batch {
  at::Tensor tokens;  // int64 [batch, seq_len]
  at::Tensor labels;  // int64 [batch, seq_len]; -100: ignored by the loss
  // The document of each token, counted in each row, int64 [batch, seq_len]; not defined where a token that ends
  // documents tells it. Padding is a document a token.
  at::Tensor documents;
};

// One microbatch with the place behind it, or why there is none.
struct MadeBatch {
  absl::Status status;
  Batch batch;
  MixCursor after;
  std::vector<std::string> warnings;
  double padding = 0;  // The share of padding in the rows that this batch is dealt from.
};

// Deals rows of a stream: of every `rows` consecutive ones, `batch` from `first` on are this rank's.
class BatchMaker {
 public:
  struct Options {
    int64_t rows = 1, first = 0, batch = 1;
    int64_t seq_len = 0;
    bool pieces = false;  // Some rows are made of pieces: labels end with them, and the batch says whose each token is.
    std::optional<int32_t> document_end;  // The token that ends a document of rows without pieces.
  };
  BatchMaker(MixedRows stream, const Options& options) : stream_(std::move(stream)), options_(options) {}

  // OutOfRange when the stream is at its end. Rows behind its end have no labels.
  MadeBatch make();

  const MixedRows& stream() const { return stream_; }
  absl::StatusOr<MixCursor> seek(const MixCursor& cursor);

 private:
  absl::Status fill(Batch& batch);
  void write(const int32_t* tokens, int64_t row, Batch& batch) const;
  absl::Status at_its_end() const;

  MixedRows stream_;
  Options options_;
};

}  // namespace titan::data
