// Parquet: a row is a document, with its text in one column (common/io/data_files/parquet_library.h).
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/parquet_library.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

class ParquetFile final : public DocumentRowsFile {
 public:
  ParquetFile(std::string path, std::unique_ptr<data_files::ParquetColumn> column, std::shared_ptr<const Chat> chat)
      : path_(std::move(path)), column_(std::move(column)), chat_(std::move(chat)) {}

  absl::Status seek(const data_files::FilePlace& place) override {
    const std::string problem = column_->seek(place.offset, place.line);
    if (problem.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", problem, ", where the checkpoint's data position is: the dataset has changed"));
  }

  absl::StatusOr<bool> next() override {
    start_ = place();
    text_ = {};
    switch (column_->next(text_.text)) {
      case data_files::ParquetColumn::Read::kText:
        if (!is_utf8(text_.text)) text_ = {"", "not UTF-8"};
        break;
      case data_files::ParquetColumn::Read::kNull:
        text_ = {"", "null"};
        break;
      case data_files::ParquetColumn::Read::kMalformed:
        text_ = {"", std::exchange(text_.text, {})};
        break;
      case data_files::ParquetColumn::Read::kEnd:
        return false;
      case data_files::ParquetColumn::Read::kFailed:
        return absl::InvalidArgumentError(
            absl::StrCat(name_of(place()), ": damaged (", text_.text, "); download the file again"));
    }
    // The first row of a group gets its own place, not the one after the last row of the previous group.
    start_ = {column_->group(), column_->row() - 1};
    return true;
  }
  data_files::FilePlace start() const override { return start_; }
  data_files::FilePlace place() const override { return {column_->group(), column_->row()}; }
  absl::StatusOr<DocumentText> text() override {
    if (chat_ != nullptr && text_.problem.empty()) return conversation_text(*chat_, text_.text);
    return std::exchange(text_, {});
  }
  std::string name() const override { return name_of(start_); }

 private:
  std::string name_of(const data_files::FilePlace& place) const {
    return absl::StrCat(path_, ", row ", place.line, " of row group ", place.offset);
  }

  const std::string path_;
  const std::unique_ptr<data_files::ParquetColumn> column_;
  const std::shared_ptr<const Chat> chat_;
  data_files::FilePlace start_;
  DocumentText text_;
};

absl::StatusOr<std::unique_ptr<data_files::ParquetColumn>> open_column(const std::string& path, const FileKind& kind) {
  return data_files::open_parquet_column(path, kind.text_key, kind.messages_key);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentRowsFile>> open_parquet(const std::string& path, const FileKind& kind,
                                                               const data_files::FilePlace& place) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<data_files::ParquetColumn> column, open_column(path, kind));
  auto file = std::make_unique<ParquetFile>(path, std::move(column), kind.chat);
  TITAN_RETURN_IF_ERROR(file->seek(place));
  return file;
}

absl::StatusOr<std::vector<int64_t>> parquet_row_groups(const std::string& path, const FileKind& kind) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data_files::ParquetColumn> column, open_column(path, kind));
  return column->row_groups();
}

}  // namespace titan::data
