// Whole rows of a Parquet file as JSON, for datasets of conversations, which are lists of structs.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/data/documents/parquet/guarded_column.h"
#include "worker/rank/data/documents/parquet/row_json.h"

namespace titan::data {
namespace {

constexpr int64_t kRowBatch = 64;  // Rows decoded at once.

[[noreturn]] void refuse_rows(const std::string& why) { throw parquet::ParquetException(why); }

class Rows final : public GuardedColumn {
 public:
  Rows(const std::string& path, const std::vector<std::string>& columns) {
    parquet::ReaderProperties properties;
    properties.set_page_checksum_verification(true);
    std::unique_ptr<parquet::ParquetFileReader> file =
        parquet::ParquetFileReader::OpenFile(path, /*memory_map=*/false, properties);
    choose(*file->metadata()->schema(), columns);
    for (int group = 0; group < file->metadata()->num_row_groups(); ++group) {
      rows_.push_back(file->metadata()->RowGroup(group)->num_rows());
    }
    parquet::ArrowReaderProperties decoding;
    decoding.set_batch_size(kRowBatch);
    decoding.set_use_threads(false);
    PARQUET_ASSIGN_OR_THROW(reader_,
                            parquet::arrow::FileReader::Make(arrow::default_memory_pool(), std::move(file), decoding));
  }

 private:
  // Selects the requested columns that exist, with all their leaves.
  void choose(const parquet::SchemaDescriptor& schema, const std::vector<std::string>& columns) {
    bool first = false;
    std::string found;
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      const std::string root = schema.GetColumnRoot(leaf)->name();
      if (found.find("\"" + root + "\"") == std::string::npos) found += (leaf > 0 ? ", \"" : "\"") + root + "\"";
      first |= root == columns.front();
      if (std::find(columns.begin(), columns.end(), root) != columns.end()) leaves_.push_back(leaf);
    }
    if (!first) refuse_rows("no column \"" + columns.front() + "\" (there are: " + found + ")");
  }

  int64_t groups() const override { return static_cast<int64_t>(rows_.size()); }
  int64_t rows(int64_t group) const override { return rows_[static_cast<size_t>(group)]; }
  // Rows between two places of a group are decoded, but not again those before the first.
  void go_to(int64_t group, int64_t row) override {
    const bool ahead = batches_ != nullptr && group == group_ && row >= row_;
    if (ahead) {
      at_ += row - row_;
    } else {
      batches_ = nullptr;
    }
  }

  Read read(std::string& text) override {
    while (group_ < groups() && row_ >= rows(group_)) {
      ++group_;
      row_ = 0;
      batches_ = nullptr;
    }
    if (group_ >= groups()) return Read::kEnd;
    if (batches_ == nullptr) start_group();
    pass_batches();
    const int64_t row = at_++;
    ++row_;
    return write(row, text);
  }

  // Writes a row of batch_.
  Read write(int64_t row, std::string& text) const {
    text = "{";
    for (int column = 0; column < batch_->num_columns(); ++column) {
      if (column > 0) text += ',';
      append_quoted(batch_->column_name(column), text);
      text += ':';
      try {
        append_value(*batch_->column(column), row, text);
      } catch (const NoJsonForm& problem) {
        text = batch_->column_name(column) + (problem.field.empty() ? "" : ".") + problem.field + ": " + problem.why;
        return Read::kMalformed;
      }
    }
    text += '}';
    return Read::kText;
  }

  // Starts a group at the next row. Rows before it are decoded, too.
  void start_group() {
    PARQUET_ASSIGN_OR_THROW(batches_, reader_->GetRecordBatchReader({static_cast<int>(group_)}, leaves_));
    fill();
    at_ = row_;
  }

  // Moves to the batch with the next row.
  void pass_batches() {
    while (at_ >= batch_->num_rows()) {
      const int64_t left = at_ - batch_->num_rows();
      fill();
      at_ = left;
    }
  }

  void fill() {
    PARQUET_THROW_NOT_OK(batches_->ReadNext(&batch_));
    if (batch_ == nullptr) refuse_rows("the columns are cut short");
    at_ = 0;
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> leaves_;
  std::vector<int64_t> rows_;  // Rows of each row group.
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t at_ = 0;  // Index of the next row, counted from the first of batch_.
};

}  // namespace
}  // namespace titan::data

extern "C" __attribute__((visibility("default"))) titan::data_files::ParquetColumn* titan_open_parquet_rows_4(
    const std::string& path, const std::vector<std::string>& columns, std::string& problem) {
  return titan::data::open_guarded<titan::data::Rows>(problem, path, columns);
}
