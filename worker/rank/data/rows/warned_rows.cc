#include "worker/rank/data/rows/warned_rows.h"

#include <utility>

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

}  // namespace titan::data
