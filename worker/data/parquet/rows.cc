// Whole rows of a Parquet file as JSON: what datasets of conversations are, lists of structs.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/parquet/guarded_column.h"

namespace titan::data {
namespace {

constexpr int64_t kRowBatch = 64;  // Rows decoded together.
constexpr int kDeepest = 32;       // Lists and structs inside of each other.

[[noreturn]] void refuse_rows(const std::string& why) { throw parquet::ParquetException(why); }

void append_quoted(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_number(double number, std::string& out) {
  if (!std::isfinite(number)) refuse_rows("a number that JSON does not have");
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", number);
  out += digits;
  if (out.find_first_of(".e", out.size() - std::char_traits<char>::length(digits)) == std::string::npos) out += ".0";
}

void append_value(const arrow::Array& array, int64_t i, int depth, std::string& out);

template <typename List>
void append_list(const List& list, int64_t i, int depth, std::string& out) {
  out += '[';
  for (int64_t item = list.value_offset(i); item < list.value_offset(i + 1); ++item) {
    if (item > list.value_offset(i)) out += ',';
    append_value(*list.values(), item, depth + 1, out);
  }
  out += ']';
}

void append_struct(const arrow::StructArray& fields, int64_t i, int depth, std::string& out) {
  out += '{';
  for (int field = 0; field < fields.num_fields(); ++field) {
    if (field > 0) out += ',';
    append_quoted(fields.struct_type()->field(field)->name(), out);
    out += ':';
    append_value(*fields.field(field), i, depth + 1, out);
  }
  out += '}';
}

template <typename Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);
}

void append_value(const arrow::Array& array, int64_t i, int depth, std::string& out) {
  if (depth > kDeepest) refuse_rows("lists and structs are nested too deeply");
  if (array.IsNull(i)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return append_quoted(as<arrow::StringArray>(array).GetView(i), out);
    case arrow::Type::LARGE_STRING:
      return append_quoted(as<arrow::LargeStringArray>(array).GetView(i), out);
    case arrow::Type::LIST:
      return append_list(as<arrow::ListArray>(array), i, depth, out);
    case arrow::Type::LARGE_LIST:
      return append_list(as<arrow::LargeListArray>(array), i, depth, out);
    case arrow::Type::STRUCT:
      return append_struct(as<arrow::StructArray>(array), i, depth, out);
    case arrow::Type::BOOL:
      out += as<arrow::BooleanArray>(array).Value(i) ? "true" : "false";
      return;
    case arrow::Type::INT32:
      out += std::to_string(as<arrow::Int32Array>(array).Value(i));
      return;
    case arrow::Type::INT64:
      out += std::to_string(as<arrow::Int64Array>(array).Value(i));
      return;
    case arrow::Type::FLOAT:
      return append_number(as<arrow::FloatArray>(array).Value(i), out);
    case arrow::Type::DOUBLE:
      return append_number(as<arrow::DoubleArray>(array).Value(i), out);
    default:
      refuse_rows("values of type " + array.type()->ToString() + " are not supported in conversations");
  }
}

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
  // Those of the wanted columns that there are, with every leaf of theirs.
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
  void go_to(int64_t, int64_t) override { batches_ = nullptr; }

  Read read(std::string& text) override {
    while (group_ < groups() && row_ >= rows(group_)) {
      ++group_;
      row_ = 0;
      batches_ = nullptr;
    }
    if (group_ >= groups()) return Read::kEnd;
    if (batches_ == nullptr) start_group();
    while (at_ >= batch_->num_rows()) fill();
    text = "{";
    for (int column = 0; column < batch_->num_columns(); ++column) {
      if (column > 0) text += ',';
      append_quoted(batch_->column_name(column), text);
      text += ':';
      append_value(*batch_->column(column), at_, 0, text);
    }
    text += '}';
    ++at_;
    ++row_;
    return Read::kText;
  }

  // Up to the row that is next: rows before it are decoded, too.
  void start_group() {
    PARQUET_ASSIGN_OR_THROW(batches_, reader_->GetRecordBatchReader({static_cast<int>(group_)}, leaves_));
    fill();
    at_ = row_;
    while (at_ >= batch_->num_rows()) {
      at_ -= batch_->num_rows();
      const int64_t left = at_;
      fill();
      at_ = left;
    }
  }

  void fill() {
    PARQUET_THROW_NOT_OK(batches_->ReadNext(&batch_));
    if (batch_ == nullptr) refuse_rows("the columns end too soon");
    at_ = 0;
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> leaves_;
  std::vector<int64_t> rows_;  // Of each row group.
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t at_ = 0;  // Of the next row in batch_.
};

}  // namespace
}  // namespace titan::data

extern "C" __attribute__((visibility("default"))) titan::data::ParquetColumn* titan_open_parquet_rows_3(
    const std::string& path, const std::vector<std::string>& columns, std::string& problem) {
  return titan::data::open_guarded<titan::data::Rows>(problem, path, columns);
}
