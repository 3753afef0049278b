#include "common/io/jinja/value.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::jinja {

const Value* Mapping::find(const Value& key) const {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return equal(entry.first, key); });
  return found == entries.end() ? nullptr : &found->second;
}

void Mapping::set(Value key, Value value) {
  for (auto& [known, old] : entries) {
    if (!equal(known, key)) continue;
    old = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
}

namespace {

constexpr int64_t kHeaviest = int64_t{1} << 40;  // Sums over parts that are shared stop growing here.

void add_part(const Value& part, Extent& whole) {
  const Extent extent = extent_of(part);
  whole.depth = std::max(whole.depth, extent.depth + 1);
  whole.weight = std::min(kHeaviest, whole.weight + extent.weight);
}

}  // namespace

Extent extent_of(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {0, 1 + static_cast<int64_t>(text->size()) / 16};
  if (const Sequence* sequence = as_sequence(value)) return sequence->extent;
  if (const Mapping* entries = as_mapping(value)) return entries->extent;
  Extent extent;
  const auto* callable = std::get_if<std::shared_ptr<const Callable>>(&value);
  if (callable != nullptr) add_part((*callable)->self, extent);
  return extent;
}

Value list(std::vector<Value> items, Sequence::Kind kind) {
  Sequence sequence{.kind = kind, .items = std::move(items)};
  for (const Value& item : sequence.items) add_part(item, sequence.extent);
  return std::make_shared<const Sequence>(std::move(sequence));
}

Value mapping(Mapping entries) {
  entries.extent = {};
  for (const auto& [key, value] : entries.entries) {
    add_part(key, entries.extent);
    add_part(value, entries.extent);
  }
  return std::make_shared<const Mapping>(std::move(entries));
}

const Sequence* as_sequence(const Value& value) {
  const auto* found = std::get_if<std::shared_ptr<const Sequence>>(&value);
  return found == nullptr ? nullptr : found->get();
}

const Mapping* as_mapping(const Value& value) {
  const auto* found = std::get_if<std::shared_ptr<const Mapping>>(&value);
  return found == nullptr ? nullptr : found->get();
}

std::string type_name(const Value& value) {
  struct Name {
    std::string operator()(const Undefined&) const { return "undefined"; }
    std::string operator()(const None&) const { return "None"; }
    std::string operator()(bool) const { return "bool"; }
    std::string operator()(int64_t) const { return "int"; }
    std::string operator()(double) const { return "float"; }
    std::string operator()(const std::string&) const { return "str"; }
    std::string operator()(const std::shared_ptr<const Sequence>& sequence) const {
      switch (sequence->kind) {
        case Sequence::Kind::kList:
          return "list";
        case Sequence::Kind::kTuple:
          return "tuple";
        case Sequence::Kind::kRange:
          return "range";
        case Sequence::Kind::kView:
          return "view of a dict";
        case Sequence::Kind::kGenerator:
          break;
      }
      return "generator";
    }
    std::string operator()(const std::shared_ptr<const Mapping>&) const { return "dict"; }
    std::string operator()(const std::shared_ptr<const Callable>&) const { return "function"; }
    std::string operator()(const Namespace*) const { return "namespace"; }
    std::string operator()(const Loop*) const { return "loop"; }
  };
  return std::visit(Name(), value);
}

std::optional<int64_t> as_integer(const Value& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_number(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  const std::optional<int64_t> whole = as_integer(value);
  return whole ? std::optional<double>(static_cast<double>(*whole)) : std::nullopt;
}

bool truth(const Value& value) {
  struct Truth {
    bool operator()(const Undefined&) const { return false; }
    bool operator()(const None&) const { return false; }
    bool operator()(bool flag) const { return flag; }
    bool operator()(int64_t number) const { return number != 0; }
    bool operator()(double number) const { return number != 0; }
    bool operator()(const std::string& text) const { return !text.empty(); }
    bool operator()(const std::shared_ptr<const Sequence>& sequence) const {
      return sequence->kind == Sequence::Kind::kGenerator || !sequence->items.empty();
    }
    bool operator()(const std::shared_ptr<const Mapping>& mapping) const { return !mapping->entries.empty(); }
    bool operator()(const std::shared_ptr<const Callable>&) const { return true; }
    bool operator()(const Namespace*) const { return true; }
    bool operator()(const Loop*) const { return true; }
  };
  return std::visit(Truth(), value);
}

namespace {

bool equal_mappings(const Mapping& one, const Mapping& other) {
  return one.entries.size() == other.entries.size() &&
         std::all_of(one.entries.begin(), one.entries.end(), [&](const auto& entry) {
           const Value* match = other.find(entry.first);
           return match != nullptr && equal(entry.second, *match);
         });
}

absl::Status not_ordered(const Value& one, const Value& other) {
  return absl::InvalidArgumentError(absl::StrCat(type_name(one), " and ", type_name(other), " cannot be ordered"));
}

}  // namespace

bool is_hashable(const Value& value) {
  const Sequence* sequence = as_sequence(value);
  if (sequence == nullptr) return as_mapping(value) == nullptr;
  return sequence->kind != Sequence::Kind::kList &&
         (sequence->kind != Sequence::Kind::kTuple ||
          std::all_of(sequence->items.begin(), sequence->items.end(), is_hashable));
}

bool equal(const Value& one, const Value& other) {
  const std::optional<int64_t> a = as_integer(one), b = as_integer(other);
  if (a && b) return *a == *b;
  const std::optional<double> x = as_number(one), y = as_number(other);
  if (x && y) return *x == *y;
  if (one.index() != other.index()) return false;
  if (const auto* text = as_text(one)) return *text == *as_text(other);
  if (const Sequence* sequence = as_sequence(one)) {
    const Sequence& match = *as_sequence(other);
    const bool compared = sequence->kind == match.kind && sequence->kind != Sequence::Kind::kGenerator;
    return sequence == &match || (compared && std::equal(sequence->items.begin(), sequence->items.end(),
                                                         match.items.begin(), match.items.end(), equal));
  }
  if (const Mapping* entries = as_mapping(one)) return equal_mappings(*entries, *as_mapping(other));
  if (is_none(one) || is_undefined(one)) return true;
  if (const auto* space = std::get_if<Namespace*>(&one)) return *space == std::get<Namespace*>(other);
  return false;
}

absl::StatusOr<int> compare(const Value& one, const Value& other) {
  const std::optional<int64_t> a = as_integer(one), b = as_integer(other);
  if (a && b) return *a < *b ? -1 : *a > *b;
  const std::optional<double> x = as_number(one), y = as_number(other);
  if (x && y) return *x < *y ? -1 : *x > *y;
  const std::string *text = as_text(one), *with = as_text(other);
  if (text != nullptr && with != nullptr) return text->compare(*with);  // UTF-8 sorts in the order of characters.
  const Sequence *sequence = as_sequence(one), *right = as_sequence(other);
  if (sequence == nullptr || right == nullptr || sequence->kind != right->kind) return not_ordered(one, other);
  if (sequence->kind != Sequence::Kind::kList && sequence->kind != Sequence::Kind::kTuple) {
    return not_ordered(one, other);
  }
  const size_t shared = std::min(sequence->items.size(), right->items.size());
  for (size_t i = 0; i < shared; ++i) {
    if (!equal(sequence->items[i], right->items[i])) return compare(sequence->items[i], right->items[i]);
  }
  return static_cast<int>(sequence->items.size() > shared) - static_cast<int>(right->items.size() > shared);
}

absl::StatusOr<Value> from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(absl::StrCat("JSON nested deeper than ", kMaxJsonDepth));
  }
  if (json.is_null()) return Value(None());
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_string()) return Value(json.get<std::string>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    return absl::InvalidArgumentError("an integer beyond 64 bits");
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) {
      TITAN_ASSIGN_OR_RETURN(items.emplace_back(), from_json(item, depth + 1));
    }
    return list(std::move(items));
  }
  Mapping entries;
  for (const auto& [key, item] : json.items()) {  // Keys are unique: the JSON reader keeps the last of duplicates.
    TITAN_ASSIGN_OR_RETURN(Value value, from_json(item, depth + 1));
    entries.entries.emplace_back(key, std::move(value));
  }
  return mapping(std::move(entries));
}

}  // namespace titan::jinja
