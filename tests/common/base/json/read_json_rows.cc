// Reads rows from standard input, one line of hexadecimal digits each. For each row it prints two lines: the reader's
// events, then the parsed value, or "-" if the row is not JSON. Strings are in hexadecimal, and the events spell
// numbers as the row does.
#include <cstdio>
#include <iostream>
#include <string>

#include "common/base/json/reader.h"
#include "common/base/json/value.h"
#include "common/base/text/utf8.h"

namespace {

using titan::json::Event;

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string to_hex(const std::string& bytes) {
  std::string digits;
  char pair[3];
  for (const char byte : bytes) {
    std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned char>(byte));
    digits += pair;
  }
  return digits;
}

std::string text_of(const titan::json::Reader& reader) {
  std::string text;
  titan::json::unescape(reader.token(), text);
  return to_hex(text);
}

std::string events_of(const std::string& row) {
  if (!titan::text::is_utf8(row)) return "-";
  titan::json::Reader reader(row);
  std::string events;
  while (true) {
    switch (reader.next()) {
      case Event::kNull:
        events += " null";
        break;
      case Event::kTrue:
        events += " true";
        break;
      case Event::kFalse:
        events += " false";
        break;
      case Event::kNumber:
        events += " " + std::string(reader.token());
        break;
      case Event::kString:
        events += " s" + text_of(reader);
        break;
      case Event::kKey:
        events += " k" + text_of(reader);
        break;
      case Event::kBeginObject:
        events += " {";
        break;
      case Event::kEndObject:
        events += " }";
        break;
      case Event::kBeginArray:
        events += " [";
        break;
      case Event::kEndArray:
        events += " ]";
        break;
      case Event::kEnd:
        return events.substr(1);
      case Event::kError:
        return "-";
    }
  }
}

std::string number(const nlohmann::ordered_json& value) {
  if (!value.is_number_float()) return value.dump();
  char text[64];
  std::snprintf(text, sizeof text, "%a", value.get<double>());
  return text;
}

// Prints a parsed value as events_of() prints events. The last of two equal keys wins.
std::string value_of(const nlohmann::ordered_json& value) {
  if (value.is_string()) return "s" + to_hex(value.get<std::string>());
  if (value.is_number()) return number(value);
  if (!value.is_structured()) return value.dump();
  std::string text = value.is_object() ? "{" : "[";
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) text += " k" + to_hex(key);
    text += " " + value_of(item);
  }
  return text + (value.is_object() ? " }" : " ]");
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::string row = from_hex(line), events = events_of(row);
    std::cout << events << "\n" << (events == "-" ? "-" : value_of(*titan::json::parse(row))) << "\n";
  }
}
