// titan-parquet.so implements parquet_column.h with Arrow's reader of Parquet files, so that no program needs Arrow to
// start.
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/data/documents/parquet/guarded_column.h"

namespace titan::data {
namespace {

constexpr int64_t kBatch = 64;  // Rows decoded at once.

void refuse(const std::string& why) { throw parquet::ParquetException(why); }

class Column final : public GuardedColumn {
 public:
  Column(const std::string& path, const std::string& name) {
    parquet::ReaderProperties properties;
    properties.set_page_checksum_verification(true);
    properties.enable_buffered_stream();  // Reads only the needed part of a row group.
    file_ = parquet::ParquetFileReader::OpenFile(path, /*memory_map=*/false, properties);
    find(name);
    check_counts();
  }

 private:
  void find(const std::string& name) {
    const parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
    column_ = schema.ColumnIndex(name);
    if (column_ < 0) {
      std::string columns;
      for (int i = 0; i < schema.num_columns(); ++i) {
        columns += (i > 0 ? ", " : "") + schema.Column(i)->path()->ToDotString();
      }
      refuse("no column \"" + name + "\" (there are: " + columns + ")");
    }
    const parquet::ColumnDescriptor& column = *schema.Column(column_);
    if (column.physical_type() != parquet::Type::BYTE_ARRAY || column.max_repetition_level() > 0) {
      refuse("column \"" + name + "\" holds no texts");
    }
    whole_ = column.max_definition_level();
  }

  // Compares all counts that the file states: otherwise rows could be lost silently.
  void check_counts() {
    const parquet::FileMetaData& metadata = *file_->metadata();
    int64_t sum = 0;
    for (int group = 0; group < metadata.num_row_groups(); ++group) {
      const int64_t rows = metadata.RowGroup(group)->num_rows();
      if (rows < 0 || metadata.RowGroup(group)->ColumnChunk(column_)->num_values() != rows) {
        refuse("row group " + std::to_string(group) + " has inconsistent row counts");
      }
      sum += rows;
    }
    if (sum != metadata.num_rows()) refuse("the row counts of the row groups and of the file disagree");
  }

  int64_t groups() const override { return file_->metadata()->num_row_groups(); }
  int64_t rows(int64_t group) const override {
    return file_->metadata()->RowGroup(static_cast<int>(group))->num_rows();
  }

  void go_to(int64_t group, int64_t row) override {
    const bool ahead = reader_ != nullptr && group == group_ && row >= row_ && row < rows(group);
    if (ahead) {
      move_to(row);
    } else {
      reader_ = nullptr;
    }
  }

  Read read(std::string& text) override {
    while (group_ < groups() && row_ >= rows(group_)) {
      if (reader_ != nullptr && reader_->HasNext()) refuse("more rows than its metadata states");
      ++group_;
      row_ = 0;
      reader_ = nullptr;
    }
    if (group_ >= groups()) return Read::kEnd;
    if (reader_ == nullptr) start_group();
    if (level_ == levels_) fill();
    ++row_;
    if (definitions_[level_++] < whole_) return Read::kNull;
    const parquet::ByteArray& value = values_[value_++];
    text.assign(reinterpret_cast<const char*>(value.ptr), value.len);
    return Read::kText;
  }

  void start_group() {
    std::unique_ptr<parquet::PageReader> pages =
        file_->RowGroup(static_cast<int>(group_))->GetColumnPageReader(column_);
    pages->set_data_page_filter([this](const parquet::DataPageStats& page) {
      page_begin_ = page_end_;
      page_end_ += page.num_values;
      return page_end_ <= wanted_;
    });
    reader_ = std::static_pointer_cast<parquet::ByteArrayReader>(
        parquet::ColumnReader::Make(file_->metadata()->schema()->Column(column_), std::move(pages)));
    level_ = levels_ = page_begin_ = page_end_ = wanted_ = 0;
    const int64_t row = std::exchange(row_, 0);
    if (row > 0) move_to(row);
    row_ = row;
  }

  // Moves to a later row of this group. Pages that end before it are skipped undecoded: most are compressed.
  void move_to(int64_t row) {
    const int64_t decoded = std::min(row - row_, levels_ - level_), decoded_end = row_ + levels_ - level_;
    value_ += std::count(definitions_.begin() + level_, definitions_.begin() + level_ + decoded, whole_);
    level_ += decoded;
    if (row <= decoded_end) return;
    wanted_ = row;
    const int64_t page = page_end_;
    skip(std::min(row, page) - decoded_end);
    if (row < page) return;
    if (!reader_->HasNext()) refuse("the column is cut short");
    skip(row - page_begin_);
  }

  void skip(int64_t rows) {
    if (rows != 0 && reader_->Skip(rows) != rows) refuse("the column is cut short");
  }

  void fill() {
    int64_t values = 0;
    definitions_.fill(static_cast<int16_t>(whole_));  // Required columns have no levels.
    const int64_t wanted = std::min(kBatch, rows(group_) - row_);
    levels_ = reader_->ReadBatch(wanted, definitions_.data(), nullptr, values_.data(), &values);
    level_ = value_ = 0;
    const auto present = std::count(definitions_.begin(), definitions_.begin() + levels_, whole_);
    if (levels_ == 0 || present != values) refuse("the column is cut short");
  }

  std::unique_ptr<parquet::ParquetFileReader> file_;
  int column_ = -1;
  int whole_ = 0;  // Definition level of a value that is not null.
  std::shared_ptr<parquet::ByteArrayReader> reader_;
  std::array<int16_t, kBatch> definitions_{};
  std::array<parquet::ByteArray, kBatch> values_{};
  int64_t levels_ = 0, level_ = 0, value_ = 0;
  int64_t page_begin_ = 0, page_end_ = 0;  // Rows, within the group, of the last page looked at.
  int64_t wanted_ = 0;                     // Pages that end at or before this row are skipped.
};

}  // namespace
}  // namespace titan::data

extern "C" __attribute__((visibility("default"))) titan::data_files::ParquetColumn* titan_open_parquet_4(
    const std::string& path, const std::string& column, std::string& problem) {
  return titan::data::open_guarded<titan::data::Column>(problem, path, column);
}
