#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace arrow {
class Array;
}

namespace titan::data {

// A value that JSON cannot express; append_value() throws it.
struct NoJsonForm {
  std::string field;  // Path below the requested value: "messages.created".
  std::string why;
};

// Appends `text` as a JSON string, in quotes and escaped.
void append_quoted(std::string_view text, std::string& out);

// Appends value `i` as JSON: lists, structs, maps with keys that are texts, texts and bytes (strings with the bytes as
// they are, which need not be UTF-8), numbers and booleans; values encoded by a dictionary; dates, times and decimals
// as texts in Arrow's format; NaN as null. Throws NoJsonForm for infinities, other types, and lists and structs nested
// more than 32 deep.
void append_value(const arrow::Array& array, int64_t i, std::string& out);

}  // namespace titan::data
