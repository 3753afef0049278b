#include "worker/rank/checkpoint/formats/pickle/plain.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::pickle {
namespace {

using Kind = PickleValue::Kind;
using nlohmann::json;

constexpr int kDepth = 32;

class Plain {
 public:
  Plain(const ParsedPickle& document, const std::string& where)
      : document_(document), where_(where), left_(4 * document.size() + 16) {}

  absl::StatusOr<json> convert(const PickleValue& value, int depth) {
    if (depth > kDepth || left_-- == 0)
      return absl::ResourceExhaustedError(absl::StrCat(where_, ": nested deeper than ", kDepth, " or without end"));
    switch (value.kind) {
      case Kind::kNone:
        return json();
      case Kind::kBool:
        return json(value.integer != 0);
      case Kind::kInt:
        return json(value.integer);
      case Kind::kFloat:
        return json(value.real);
      case Kind::kText:
        return json(std::string(value.text));
      case Kind::kBytes:
        return binary(value.text);
      case Kind::kTuple:
      case Kind::kList:
        return list(value, depth);
      case Kind::kDict:
        return dict(value, depth);
      case Kind::kObject:
        return object(value);
      case Kind::kClass:
      case Kind::kPersistent:
        break;
    }
    return no_plain(value);
  }

 private:
  absl::Status no_plain(const PickleValue& value) const {
    return absl::FailedPreconditionError(absl::StrCat(where_, ": holds ", name(value.kind), " ",
                                                      std::string(document_.class_of(value)),
                                                      "; only numbers, texts, lists and dicts are supported"));
  }
  static json binary(std::string_view bytes) { return json::binary(std::vector<uint8_t>(bytes.begin(), bytes.end())); }

  absl::StatusOr<json> list(const PickleValue& value, int depth) {
    json all = json::array();
    for (const Id id : value.items) {
      TITAN_ASSIGN_OR_RETURN(json item, convert(document_.at(id), depth + 1));
      all.push_back(std::move(item));
    }
    return all;
  }

  absl::StatusOr<json> dict(const PickleValue& value, int depth) {
    json all = json::object();
    for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
      const PickleValue& key = document_.at(value.items[i]);
      if (key.kind != Kind::kText && key.kind != Kind::kInt) return no_plain(key);
      TITAN_ASSIGN_OR_RETURN(json item, convert(document_.at(value.items[i + 1]), depth + 1));
      all[key.kind == Kind::kText ? std::string(key.text) : absl::StrCat(key.integer)] = std::move(item);
    }
    return all;
  }

  // Converts bytes, which protocols without an opcode for them write as a text in which each character is a byte.
  absl::StatusOr<json> object(const PickleValue& value) const {
    const PickleValue& arguments = document_.at(value.items[1]);
    if (document_.class_of(value) != "_codecs.encode" || arguments.items.size() != 2) return no_plain(value);
    const PickleValue& text = document_.at(arguments.items[0]);
    if (text.kind != Kind::kText || document_.at(arguments.items[1]).text != "latin1") return no_plain(value);
    std::string bytes;
    for (size_t i = 0; i < text.text.size(); ++i) {
      const auto c = static_cast<uint8_t>(text.text[i]);
      const uint8_t next = i + 1 < text.text.size() ? static_cast<uint8_t>(text.text[i + 1]) : 0;
      if (c < 0x80) {
        bytes.push_back(static_cast<char>(c));
      } else if ((c & 0xfc) == 0xc0 && (next & 0xc0) == 0x80) {
        bytes.push_back(static_cast<char>(c << 6 | (next & 0x3f)));
        ++i;
      } else {
        return absl::DataLossError(absl::StrCat(where_, ": a text that encodes bytes has a character above U+00FF"));
      }
    }
    return binary(bytes);
  }

  const ParsedPickle& document_;
  const std::string& where_;
  size_t left_;  // Number of values that may still be made.
};

}  // namespace

absl::StatusOr<json> plain(const ParsedPickle& document, const std::string& where) {
  return Plain(document, where).convert(document.root(), 0);
}

std::string bytes_of(const json& binary) {
  if (!binary.is_binary()) return "";
  return {binary.get_binary().begin(), binary.get_binary().end()};
}

}  // namespace titan::pickle
