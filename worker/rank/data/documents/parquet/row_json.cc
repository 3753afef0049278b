#include "worker/rank/data/documents/parquet/row_json.h"

#include <arrow/api.h>

#include <cmath>
#include <cstdio>

namespace titan::data {
namespace {

constexpr int kMaxDepth = 32;  // Nesting of lists and structs.

template <typename Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);
}

// Writes NaN as null, because pandas stores a missing number as NaN.
void append_number(double number, std::string& out) {
  if (std::isnan(number)) {
    out += "null";
    return;
  }
  if (std::isinf(number)) throw NoJsonForm{"", "an infinity has no form in JSON"};
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", number);
  out += digits;
  if (out.find_first_of(".e", out.size() - std::char_traits<char>::length(digits)) == std::string::npos) out += ".0";
}

template <typename Array>
void append_integer(const arrow::Array& array, int64_t i, std::string& out) {
  out += std::to_string(as<Array>(array).Value(i));
}

[[noreturn]] void refuse_type(const arrow::Array& array) {
  throw NoJsonForm{"", "values of type " + array.type()->ToString() + " have no form in JSON"};
}

void append_as_arrow_writes(const arrow::Array& array, int64_t i, std::string& out) {
  const arrow::Result<std::shared_ptr<arrow::Scalar>> value = array.GetScalar(i);
  if (!value.ok()) refuse_type(array);
  append_quoted((*value)->ToString(), out);
}

void append_at(const arrow::Array& array, int64_t i, int depth, std::string& out);

template <typename List>
void append_list(const arrow::Array& array, int64_t i, int depth, std::string& out) {
  const List& list = as<List>(array);
  out += '[';
  for (int64_t item = list.value_offset(i); item < list.value_offset(i + 1); ++item) {
    if (item > list.value_offset(i)) out += ',';
    append_at(*list.values(), item, depth + 1, out);
  }
  out += ']';
}

void append_field(const std::string& name, const arrow::Array& array, int64_t i, int depth, std::string& out) {
  append_quoted(name, out);
  out += ':';
  try {
    append_at(array, i, depth + 1, out);
  } catch (NoJsonForm& problem) {
    problem.field = problem.field.empty() ? name : name + "." + problem.field;
    throw;
  }
}

void append_struct(const arrow::StructArray& fields, int64_t i, int depth, std::string& out) {
  out += '{';
  for (int field = 0; field < fields.num_fields(); ++field) {
    if (field > 0) out += ',';
    append_field(fields.struct_type()->field(field)->name(), *fields.field(field), i, depth, out);
  }
  out += '}';
}

void append_map(const arrow::MapArray& map, int64_t i, int depth, std::string& out) {
  if (map.keys()->type_id() != arrow::Type::STRING) refuse_type(map);
  const auto& keys = as<arrow::StringArray>(*map.keys());
  out += '{';
  for (int64_t item = map.value_offset(i); item < map.value_offset(i + 1); ++item) {
    if (item > map.value_offset(i)) out += ',';
    append_field(std::string(keys.GetView(item)), *map.items(), item, depth, out);
  }
  out += '}';
}

void append_at(const arrow::Array& array, int64_t i, int depth, std::string& out) {
  if (depth > kMaxDepth) throw NoJsonForm{"", "lists and structs are nested too deeply"};
  if (array.IsNull(i)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return append_quoted(as<arrow::BinaryArray>(array).GetView(i), out);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return append_quoted(as<arrow::LargeBinaryArray>(array).GetView(i), out);
    case arrow::Type::DICTIONARY: {
      const auto& coded = as<arrow::DictionaryArray>(array);
      return append_at(*coded.dictionary(), coded.GetValueIndex(i), depth + 1, out);
    }
    case arrow::Type::LIST:
      return append_list<arrow::ListArray>(array, i, depth, out);
    case arrow::Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, i, depth, out);
    case arrow::Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, i, depth, out);
    case arrow::Type::STRUCT:
      return append_struct(as<arrow::StructArray>(array), i, depth, out);
    case arrow::Type::MAP:
      return append_map(as<arrow::MapArray>(array), i, depth, out);
    case arrow::Type::BOOL:
      out += as<arrow::BooleanArray>(array).Value(i) ? "true" : "false";
      return;
    case arrow::Type::INT8:
      return append_integer<arrow::Int8Array>(array, i, out);
    case arrow::Type::INT16:
      return append_integer<arrow::Int16Array>(array, i, out);
    case arrow::Type::INT32:
      return append_integer<arrow::Int32Array>(array, i, out);
    case arrow::Type::INT64:
      return append_integer<arrow::Int64Array>(array, i, out);
    case arrow::Type::UINT8:
      return append_integer<arrow::UInt8Array>(array, i, out);
    case arrow::Type::UINT16:
      return append_integer<arrow::UInt16Array>(array, i, out);
    case arrow::Type::UINT32:
      return append_integer<arrow::UInt32Array>(array, i, out);
    case arrow::Type::UINT64:
      return append_integer<arrow::UInt64Array>(array, i, out);
    case arrow::Type::FLOAT:
      return append_number(as<arrow::FloatArray>(array).Value(i), out);
    case arrow::Type::DOUBLE:
      return append_number(as<arrow::DoubleArray>(array).Value(i), out);
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256:
      return append_as_arrow_writes(array, i, out);
    default:
      refuse_type(array);
  }
}

}  // namespace

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

void append_value(const arrow::Array& array, int64_t i, std::string& out) { append_at(array, i, 0, out); }

}  // namespace titan::data
