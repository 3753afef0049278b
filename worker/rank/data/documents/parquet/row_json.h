#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace arrow {
class Array;
}

namespace titan::data {

// What a row has and JSON has no form for, thrown by append_value().
struct NoJsonForm {
  std::string field;  // Below the value that was asked for: "messages.created".
  std::string why;
};

void append_quoted(std::string_view text, std::string& out);

// Appends value `i` as JSON: lists, structs, maps of texts, texts (bytes are taken for UTF-8), numbers and flags; what
// is encoded by a dictionary as its value; dates, times and decimals as texts, as Arrow writes them; NaN as null.
// Throws NoJsonForm for infinities, other types and lists and structs that are more than 32 deep.
void append_value(const arrow::Array& array, int64_t i, std::string& out);

}  // namespace titan::data
