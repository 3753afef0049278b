#include "common/base/json/value.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json/reader.h"

namespace titan::json {
namespace {

using nlohmann::ordered_json;

ordered_json real_number(std::string_view token) {
  if (token == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::strtod(std::string(token).c_str(), nullptr);  // Reads "Infinity" too, and 1e999 as infinity.
}

ordered_json number(std::string_view token) {
  if (token.find_first_of(".eENI") != std::string_view::npos) return real_number(token);
  int64_t whole = 0;
  if (std::from_chars(token.data(), token.data() + token.size(), whole).ec == std::errc()) return whole;
  uint64_t large = std::numeric_limits<uint64_t>::max();
  std::from_chars(token.data(), token.data() + token.size(), large);  // Leaves `large` unchanged beyond 64 bits.
  return large;
}

std::string text_of(const Reader& reader) {
  if (!reader.has_escapes()) return std::string(reader.token());
  std::string text;
  unescape(reader.token(), text);
  return text;
}

// Adds each value to the innermost open array, or under the latest key of the innermost open object.
class Builder {
 public:
  ordered_json& add(ordered_json value) {
    if (open_.empty()) return root_ = std::move(value);
    ordered_json& parent = *open_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
  void open(ordered_json value) { open_.push_back(&add(std::move(value))); }
  void close() { open_.pop_back(); }
  void key(std::string name) { key_ = std::move(name); }
  ordered_json take() { return std::move(root_); }

 private:
  ordered_json root_;
  std::vector<ordered_json*> open_;  // Each is a child of the previous one, which gains no other child meanwhile, so
                                     // the pointers stay valid.
  std::string key_;
};

}  // namespace

std::optional<ordered_json> parse(std::string_view text) {
  Reader reader(text);
  Builder builder;
  while (true) {
    switch (reader.next()) {
      case Event::kNull:
        builder.add(nullptr);
        break;
      case Event::kTrue:
        builder.add(true);
        break;
      case Event::kFalse:
        builder.add(false);
        break;
      case Event::kNumber:
        builder.add(number(reader.token()));
        break;
      case Event::kString:
        builder.add(text_of(reader));
        break;
      case Event::kKey:
        builder.key(text_of(reader));
        break;
      case Event::kBeginObject:
        builder.open(ordered_json::object());
        break;
      case Event::kBeginArray:
        builder.open(ordered_json::array());
        break;
      case Event::kEndObject:
      case Event::kEndArray:
        builder.close();
        break;
      case Event::kEnd:
        return builder.take();
      case Event::kError:
        return std::nullopt;
    }
  }
}

}  // namespace titan::json
