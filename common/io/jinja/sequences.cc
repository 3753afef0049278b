#include "common/io/jinja/sequences.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"
#include "common/io/jinja/methods.h"
#include "common/io/jinja/text.h"

namespace titan::jinja {
namespace {

absl::Status read_once(const Sequence& generator) {
  if (!std::exchange(generator.read, true)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the result of a filter can be read only once, but is read a second time: put \"|list\" after the filter");
}

// Resolves an index that may count from the end; nothing when it is out of range.
std::optional<size_t> place_of(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  if (index < 0) index += count;
  return index >= 0 && index < count ? std::optional<size_t>(index) : std::nullopt;
}

std::vector<Value> texts(const std::vector<std::string>& all) { return {all.begin(), all.end()}; }

}  // namespace

absl::StatusOr<std::vector<Value>> items_of(Run& run, const Value& value) {
  if (is_undefined(value)) return std::vector<Value>();
  if (const Sequence* sequence = as_sequence(value)) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(sequence->items.size())));
    if (sequence->kind == Sequence::Kind::kGenerator) TITAN_RETURN_IF_ERROR(read_once(*sequence));
    return sequence->items;
  }
  std::vector<Value> items;
  if (const Mapping* entries = as_mapping(value)) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(entries->entries.size())));
    for (const auto& [key, item] : entries->entries) items.push_back(key);
    return items;
  }
  if (const std::string* text = as_text(value)) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(text->size())));
    return texts(characters(*text));
  }
  return absl::InvalidArgumentError(absl::StrCat("a value of type ", type_name(value), " has no items"));
}

absl::StatusOr<int64_t> length_of(const Value& value) {
  if (is_undefined(value)) return 0;
  const Sequence* sequence = as_sequence(value);
  if (sequence != nullptr && sequence->kind != Sequence::Kind::kGenerator) {
    return static_cast<int64_t>(sequence->items.size());
  }
  if (const Mapping* entries = as_mapping(value)) return static_cast<int64_t>(entries->entries.size());
  if (const std::string* text = as_text(value)) return length(*text);
  return absl::InvalidArgumentError(absl::StrCat("a value of type ", type_name(value), " has no length"));
}

absl::StatusOr<bool> contains(Run& run, const Value& value, const Value& key) {
  if (const std::string* text = as_text(value)) {
    const std::string* part = as_text(key);
    if (part == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("a value of type ", type_name(key), " cannot be in a string"));
    }
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(text->size()) / 16));
    return text->find(*part) != std::string::npos;
  }
  if (as_mapping(value) != nullptr && !is_hashable(key)) {
    return absl::InvalidArgumentError(absl::StrCat("a value of type ", type_name(key), " cannot be a key"));
  }
  TITAN_RETURN_IF_ERROR(run.spend(extent_of(value).weight));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> items, items_of(run, value));
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(item, key); });
}

std::optional<Value> item_of(const Value& value, const Value& key) {
  if (const Mapping* entries = as_mapping(value)) {
    const Value* found = entries->find(key);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  const std::optional<int64_t> index = as_integer(key);
  if (!index) return std::nullopt;
  if (const Sequence* sequence = as_sequence(value)) {
    if (sequence->kind == Sequence::Kind::kGenerator || sequence->kind == Sequence::Kind::kView) return std::nullopt;
    const auto place = place_of(*index, sequence->items.size());
    return place ? std::optional<Value>(sequence->items[*place]) : std::nullopt;
  }
  if (const std::string* text = as_text(value)) {
    const std::vector<std::string> all = characters(*text);
    const auto place = place_of(*index, all.size());
    return place ? std::optional<Value>(all[*place]) : std::nullopt;
  }
  return std::nullopt;
}

namespace {

struct Slice {
  int64_t begin = 0, end = 0, step = 1;
};

// Returns the same as Python's slice.indices().
absl::StatusOr<Slice> slice_indices(const Value& begin, const Value& end, const Value& step, int64_t size) {
  const auto part = [](const Value& value, std::optional<int64_t>& out) {
    out = as_integer(value);
    return out.has_value() || is_none(value);
  };
  std::optional<int64_t> from, to, by;
  if (!part(begin, from) || !part(end, to) || !part(step, by)) {
    return absl::InvalidArgumentError("begin, end and step of a slice must be integers");
  }
  Slice slice{.step = by.value_or(1)};
  if (slice.step == 0) return absl::InvalidArgumentError("the step of a slice cannot be 0");
  const bool back = slice.step < 0;
  const int64_t lowest = back ? -1 : 0, highest = back ? size - 1 : size;
  const auto placed = [&](std::optional<int64_t> index, int64_t otherwise) {
    if (!index) return otherwise;
    return std::clamp(*index < 0 ? *index + size : *index, lowest, highest);
  };
  slice.begin = placed(from, back ? highest : lowest);
  slice.end = placed(to, back ? lowest : highest);
  return slice;
}

template <typename Item>
std::vector<Item> sliced(const std::vector<Item>& items, const Slice& slice) {
  std::vector<Item> part;
  const int64_t step = std::clamp<int64_t>(slice.step, -int64_t{1} << 40, int64_t{1} << 40);
  for (int64_t i = slice.begin; step > 0 ? i < slice.end : i > slice.end; i += step) part.push_back(items[i]);
  return part;
}

}  // namespace

absl::StatusOr<Value> slice_of(Run& run, const Value& value, const Value& begin, const Value& end, const Value& step) {
  const Sequence* sequence = as_sequence(value);
  const std::string* text = as_text(value);
  const bool cut =
      sequence != nullptr && sequence->kind != Sequence::Kind::kGenerator && sequence->kind != Sequence::Kind::kView;
  if (!cut && text == nullptr) {
    if (const auto* undefined = std::get_if<Undefined>(&value)) return absl::InvalidArgumentError(undefined->why);
    return absl::InvalidArgumentError(absl::StrCat("a value of type ", type_name(value), " has no slices"));
  }
  if (cut) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(sequence->items.size())));
    TITAN_ASSIGN_OR_RETURN(const Slice slice,
                           slice_indices(begin, end, step, static_cast<int64_t>(sequence->items.size())));
    return list(sliced(sequence->items, slice), sequence->kind);
  }
  TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(text->size())));
  const std::vector<std::string> all = characters(*text);
  TITAN_ASSIGN_OR_RETURN(const Slice slice, slice_indices(begin, end, step, static_cast<int64_t>(all.size())));
  std::string part;
  for (const std::string& character : sliced(all, slice)) part += character;
  return part;
}

namespace {

absl::StatusOr<Value> loop_attribute(const Loop& loop, const std::string& name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto at = [&](int64_t index) -> Value {
    if (index < 0 || index >= size) return Undefined{absl::StrCat("there is no ", name, " here")};
    return loop.items->items[index];
  };
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "revindex") return size - loop.index0;
  if (name == "revindex0") return size - loop.index0 - 1;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.index0 == size - 1;
  if (name == "length") return size;
  if (name == "depth") return int64_t{1};  // More only in recursive loops, which are not supported.
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return at(loop.index0 - 1);
  if (name == "nextitem") return at(loop.index0 + 1);
  return Undefined{absl::StrCat("'loop' has no attribute '", name, "'")};
}

}  // namespace

absl::StatusOr<Value> attribute_of(Run&, const Value& value, const std::string& name) {
  if (const auto* undefined = std::get_if<Undefined>(&value)) return absl::InvalidArgumentError(undefined->why);
  if (has_method(value, name)) {
    return std::make_shared<const Callable>(Callable{Callable::Kind::kMethod, name, value, nullptr});
  }
  if (const auto* loop = std::get_if<const Loop*>(&value)) return loop_attribute(**loop, name);
  const auto* space = std::get_if<Namespace*>(&value);
  const Value* found = space != nullptr ? (*space)->attributes.find(name) : nullptr;
  if (const Mapping* entries = as_mapping(value)) found = entries->find(name);
  if (found != nullptr) return *found;
  return Undefined{absl::StrCat("'", type_name(value), "' has no attribute '", name, "'")};
}

absl::StatusOr<Value> attribute_at(Run& run, const Value& value, const Value& path) {
  if (as_integer(path)) return item_of(value, path).value_or(Undefined{"there is no such item"});
  const std::string* text = as_text(path);
  if (text == nullptr) return absl::InvalidArgumentError("the name of an attribute must be a string");
  Value found = value;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(*text, '.'))) {
    int64_t index = 0;
    const Value key = absl::SimpleAtoi(part, &index) ? Value(index) : Value(part);
    if (const auto* undefined = std::get_if<Undefined>(&found)) return absl::InvalidArgumentError(undefined->why);
    std::optional<Value> item = item_of(found, key);
    if (!item && as_text(key) != nullptr) {
      TITAN_ASSIGN_OR_RETURN(item, attribute_of(run, found, part));
    }
    found = item ? *std::move(item) : Value(Undefined{absl::StrCat("there is no item ", part)});
  }
  return found;
}

}  // namespace titan::jinja
