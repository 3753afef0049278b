// Blocks of Parquet: a few rows each, independent of the row groups.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/block_files.h"

namespace titan::data {
namespace {

constexpr size_t kOpenFiles = 3;  // For the place where a rank counts, where its rows are, and one more.

class RowBlocks final : public BlockFiles {
 public:
  // `firsts`: for each file the number of the first row of each row group, then of all rows.
  RowBlocks(std::vector<std::string> files, FileKind kind, std::vector<std::vector<int64_t>> firsts, int64_t block_rows)
      : files_(std::move(files)), kind_(std::move(kind)), firsts_(std::move(firsts)), block_rows_(block_rows) {}

  int64_t blocks(int64_t file) const override { return parts_of(firsts_[file].back(), block_rows_); }

  absl::StatusOr<BlockTexts> read(int64_t file, int64_t block) override {
    const int64_t begin = block * block_rows_, end = std::min(begin + block_rows_, firsts_[file].back());
    BlockTexts texts;
    TITAN_ASSIGN_OR_RETURN(DocumentRowsFile * rows, open_at(file, begin));
    for (int64_t row = begin; row < end; ++row) {
      TITAN_ASSIGN_OR_RETURN(const bool found, rows->next());
      if (!found) break;
      TITAN_ASSIGN_OR_RETURN(DocumentText text, rows->text());
      texts.begins.push_back(row);
      texts.documents.push_back({row, 0, std::move(text)});
    }
    return texts;
  }
  absl::StatusOr<data_files::FilePlace> next_begin(int64_t file, int64_t block) override {
    return place(file, block * block_rows_, 0);
  }

  absl::StatusOr<int64_t> at(int64_t file, const data_files::FilePlace& place) const override {
    const std::vector<int64_t>& firsts = firsts_[file];
    const auto groups = static_cast<int64_t>(firsts.size()) - 1;
    const int64_t rows = place.offset < groups ? firsts[place.offset + 1] - firsts[place.offset] : 0;
    if (place.offset <= groups && place.line >= 0 && place.line <= rows) return firsts[place.offset] + place.line;
    return absl::InvalidArgumentError(
        absl::StrCat(files_[file], ": no row ", place.line, " in row group ", place.offset,
                     ", where the checkpoint's data position is: the dataset has changed"));
  }

  data_files::FilePlace place(int64_t file, int64_t at, int64_t) const override {
    const std::vector<int64_t>& firsts = firsts_[file];
    const auto following = std::upper_bound(firsts.begin(), firsts.end() - 1, at);  // Groups may be empty.
    const int64_t group = following - firsts.begin() - 1;
    return {group, at - firsts[group]};
  }

  absl::StatusOr<int64_t> block_of(int64_t file, int64_t at) override {
    return at < firsts_[file].back() ? at / block_rows_ : blocks(file);
  }

  std::string name(int64_t file, int64_t at, int64_t) const override {
    const data_files::FilePlace where = place(file, at, 0);
    return absl::StrCat(files_[file], ", row ", where.line, " of row group ", where.offset);
  }

 private:
  struct Open {
    int64_t file = 0;
    std::unique_ptr<DocumentRowsFile> rows;
  };

  // Returns a file at a row. Prefers the open file that has the fewest rows to skip, because a row is found by decoding
  // all rows before it in its group.
  absl::StatusOr<DocumentRowsFile*> open_at(int64_t file, int64_t row) {
    const data_files::FilePlace wanted = place(file, row, 0);
    const auto skipped = [&](const Open& open) {
      const data_files::FilePlace now = open.rows->place();
      const bool same = open.file == file && now.offset == wanted.offset && now.line <= wanted.line;
      return same ? wanted.line - now.line : wanted.line + 1;
    };
    auto best = std::min_element(open_.begin(), open_.end(),
                                 [&](const Open& a, const Open& b) { return skipped(a) < skipped(b); });
    if (best == open_.end() || skipped(*best) > wanted.line) {
      best = std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.file == file; });
    }
    if (best == open_.end() || (skipped(*best) > wanted.line && open_.size() < kOpenFiles)) {
      if (open_.size() == kOpenFiles) open_.erase(open_.begin());
      TITAN_ASSIGN_OR_RETURN(std::unique_ptr<DocumentRowsFile> rows, open_parquet(files_[file], kind_, {}));
      best = open_.insert(open_.end(), {file, std::move(rows)});
    }
    std::rotate(best, best + 1, open_.end());  // The last is the most recently used.
    TITAN_RETURN_IF_ERROR(open_.back().rows->seek(wanted));
    return open_.back().rows.get();
  }

  const std::vector<std::string> files_;
  const FileKind kind_;
  const std::vector<std::vector<int64_t>> firsts_;
  const int64_t block_rows_;
  std::vector<Open> open_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockFiles>> BlockFiles::of_rows(const std::vector<std::string>& files,
                                                                const FileKind& kind, const Sizes& sizes) {
  std::vector<std::vector<int64_t>> firsts;
  for (const std::string& file : files) {
    TITAN_ASSIGN_OR_RETURN(const std::vector<int64_t> groups, parquet_row_groups(file, kind));
    std::vector<int64_t>& numbers = firsts.emplace_back(1, 0);
    for (const int64_t rows : groups) numbers.push_back(numbers.back() + rows);
  }
  return std::make_unique<RowBlocks>(files, kind, std::move(firsts), sizes.rows);
}

}  // namespace titan::data
