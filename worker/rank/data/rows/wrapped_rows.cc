#include "worker/rank/data/rows/wrapped_rows.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/compressed_text.h"

namespace titan::data {
namespace {

class WarnedRows final : public RowSource {
 public:
  WarnedRows(std::unique_ptr<RowSource> rows, std::string warning)
      : rows_(std::move(rows)), warnings_{std::move(warning)} {}

  absl::StatusOr<const int32_t*> next() override { return rows_->next(); }
  absl::Span<const int64_t> piece_ends() const override { return rows_->piece_ends(); }
  bool has_pieces() const override { return rows_->has_pieces(); }
  int64_t padding() const override { return rows_->padding(); }
  absl::StatusOr<int64_t> skip(int64_t rows) override { return rows_->skip(rows); }
  absl::StatusOr<StreamPosition> position() override { return rows_->position(); }
  absl::Status seek(const StreamPosition& position) override { return rows_->seek(position); }
  std::vector<std::string> take_warnings() override {
    std::vector<std::string> warnings = std::exchange(warnings_, {});
    for (std::string& warning : rows_->take_warnings()) warnings.push_back(std::move(warning));
    return warnings;
  }

 private:
  const std::unique_ptr<RowSource> rows_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::unique_ptr<RowSource> warned_rows(std::unique_ptr<RowSource> rows, std::string warning) {
  return std::make_unique<WarnedRows>(std::move(rows), std::move(warning));
}

namespace {

// The other source seeks to the last known position, in a job at most a batch ago, and skips the rows read since.
class FallbackRows final : public RowSource {
 public:
  FallbackRows(std::unique_ptr<RowSource> counted, OpenRowSource everything)
      : rows_(std::move(counted)), everything_(std::move(everything)) {}

  absl::StatusOr<const int32_t*> next() override {
    absl::StatusOr<const int32_t*> row = ask([this] { return rows_->next(); });
    if (row.ok() && *row != nullptr) ++rows_since_known_;
    return row;
  }

  absl::StatusOr<int64_t> skip(int64_t rows) override {
    const absl::StatusOr<int64_t> skipped = ask([&] { return rows_->skip(rows); });
    rows_since_known_ += skipped.value_or(0);
    return skipped;
  }

  absl::StatusOr<StreamPosition> position() override {
    absl::StatusOr<StreamPosition> position = ask([this] { return rows_->position(); });
    if (position.ok()) known(*position);
    return position;
  }

  absl::Status seek(const StreamPosition& position) override {
    known(position);
    const absl::Status sought = rows_->seek(position);
    return is_too_dense(sought) ? fall_back(sought) : sought;
  }

  std::vector<std::string> take_warnings() override {
    keep_warnings();
    return std::exchange(warnings_, {});
  }

 private:
  // Returns the answer of rows_, or of the other source if the first is too dense.
  template <typename Question>
  auto ask(const Question& question) -> decltype(question()) {
    auto answer = question();
    if (!is_too_dense(answer.status())) return answer;
    TITAN_RETURN_IF_ERROR(fall_back(answer.status()));
    return question();
  }

  void known(const StreamPosition& position) {
    known_ = position;
    rows_since_known_ = 0;
  }

  // Collects warnings, without those that repeat while rows are read again.
  void keep_warnings() {
    for (std::string& warning : rows_->take_warnings()) {
      if (reading_again_ && std::find(reported_.begin(), reported_.end(), warning) != reported_.end()) continue;
      if (everything_ != nullptr) reported_.push_back(warning);
      warnings_.push_back(std::move(warning));
    }
  }

  absl::Status fall_back(const absl::Status& why) {
    keep_warnings();
    TITAN_ASSIGN_OR_RETURN(rows_, everything_());
    everything_ = nullptr;
    warnings_.push_back(
        absl::StrCat(std::string(why.message()), ": this rank reads and tokenises all text from here on"));
    TITAN_RETURN_IF_ERROR(rows_->seek(known_));
    reading_again_ = true;
    const absl::StatusOr<int64_t> again = rows_->skip(rows_since_known_);
    keep_warnings();
    reading_again_ = false;
    reported_ = {};
    return again.status();
  }

  std::unique_ptr<RowSource> rows_;
  OpenRowSource everything_;  // Null once it has replaced rows_.
  StreamPosition known_;
  int64_t rows_since_known_ = 0;  // Rows since known_.
  bool reading_again_ = false;
  std::vector<std::string> reported_, warnings_;
};

}  // namespace

std::unique_ptr<RowSource> fallback_rows(std::unique_ptr<RowSource> counted, OpenRowSource everything) {
  return std::make_unique<FallbackRows>(std::move(counted), std::move(everything));
}

}  // namespace titan::data
