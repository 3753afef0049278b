#include "worker/rank/data/loader/batch.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "common/base/status/status.h"
#include "worker/rank/data/chat/label_tokens.h"

namespace titan::data {
namespace {

constexpr int64_t kIgnoreIndex = -100;

// Numbers the documents of a row that is cut from one stream of texts, when other rows have pieces.
void number(absl::Span<const int32_t> tokens, std::optional<int32_t> document_end, int64_t* documents) {
  int64_t document = 0;
  for (const int32_t token : tokens) {
    *documents++ = document;
    if (token == document_end) ++document;
  }
}

// Numbers the pieces of a row. No piece's last token predicts the next piece, and padding has no labels.
void separate(absl::Span<const int64_t> ends, int64_t seq_len, int64_t* labels, int64_t* documents) {
  int64_t begin = 0, document = 0;
  for (const int64_t end : ends) {
    if (end <= seq_len) labels[end - 1] = kIgnoreIndex;
    std::fill(documents + begin, documents + std::min(end, seq_len), document++);
    begin = std::min(end, seq_len);
  }
  std::fill(labels + begin, labels + seq_len, kIgnoreIndex);
  std::iota(documents + begin, documents + seq_len, document);
}

}  // namespace

MadeBatch BatchMaker::make() {
  MadeBatch made;
  const int64_t before = stream_.padding();
  made.status = fill(made.batch);
  const absl::StatusOr<const MixCursor*> after = stream_.cursor();
  if (made.status.ok()) made.status = after.status();
  if (after.ok()) made.after = **after;
  made.warnings = stream_.take_warnings();
  made.padding =
      static_cast<double>(stream_.padding() - before) / static_cast<double>(options_.rows * (options_.seq_len + 1));
  return made;
}

absl::StatusOr<MixCursor> BatchMaker::seek(const MixCursor& cursor) {
  TITAN_RETURN_IF_ERROR(stream_.seek(cursor));
  TITAN_ASSIGN_OR_RETURN(const MixCursor* reached, stream_.cursor());
  return *reached;
}

absl::Status BatchMaker::fill(Batch& batch) {
  const std::array<int64_t, 2> shape = {options_.batch, options_.seq_len};
  batch[kTokens] = at::zeros(shape, at::kLong);
  batch[kLabels] = at::full(shape, kIgnoreIndex, at::kLong);
  if (options_.pieces) batch[kDocuments] = at::zeros(shape, at::kLong);
  TITAN_ASSIGN_OR_RETURN(const int64_t before, stream_.skip(options_.first));
  bool more = before == options_.first;
  int64_t seen = before;
  for (int64_t row = 0; more && row < options_.batch; ++row) {
    TITAN_ASSIGN_OR_RETURN(const int32_t* tokens, stream_.next());
    if (more = tokens != nullptr; !more) break;
    ++seen;
    write(tokens, row, batch);
  }
  if (more) TITAN_RETURN_IF_ERROR(stream_.skip(options_.rows - options_.first - options_.batch).status());
  return seen == 0 ? end_of_data_error() : absl::OkStatus();
}

void BatchMaker::write(const int32_t* tokens, int64_t row, Batch& batch) const {
  const int64_t seq_len = options_.seq_len, at = row * seq_len;
  int64_t* labels = batch[kLabels].data_ptr<int64_t>() + at;
  std::transform(tokens, tokens + seq_len, batch[kTokens].data_ptr<int64_t>() + at, token_of);
  std::transform(tokens + 1, tokens + 1 + seq_len, labels,
                 [](int32_t token) { return is_label(token) ? int64_t{token} : kIgnoreIndex; });
  if (!options_.pieces) return;
  int64_t* documents = batch[kDocuments].data_ptr<int64_t>() + at;
  if (stream_.piece_ends().empty())
    return number({tokens, static_cast<size_t>(seq_len)}, options_.document_end, documents);
  separate(stream_.piece_ends(), seq_len, labels, documents);
}

absl::Status BatchMaker::end_of_data_error() const {
  if (stream_.sources().size() == 1) return absl::OutOfRangeError("the dataset is at its end");
  return absl::OutOfRangeError(
      "the data is at its end: every source that has a weight has ended; give one of them repeat = true, or the job "
      "fewer steps");
}

}  // namespace titan::data
