#include "common/io/jinja/methods.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/jinja/filters.h"
#include "common/io/jinja/repr.h"
#include "common/io/jinja/sequences.h"
#include "common/io/jinja/text.h"

namespace titan::jinja {
namespace {

constexpr std::string_view kStringMethods[] = {
    "capitalize", "count",  "endswith", "find",   "isalnum",    "isalpha",      "isdigit",      "islower", "isspace",
    "isupper",    "join",   "lower",    "lstrip", "partition",  "removeprefix", "removesuffix", "replace", "rfind",
    "rpartition", "rsplit", "rstrip",   "split",  "splitlines", "startswith",   "strip",        "title",   "upper"};
constexpr std::string_view kListMethods[] = {"count"};
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};
constexpr std::string_view kLoopMethods[] = {"changed", "cycle"};

template <size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value text_list(std::vector<std::string> texts) { return list({texts.begin(), texts.end()}); }

// Returns the text between two character positions, for the optional begin and end of a search. `beyond`: the positions
// lie outside the text or are reversed.
std::string_view part_of(std::string_view text, int64_t begin, int64_t end, bool& beyond) {
  const int64_t size = length(text);
  if (begin < 0) begin = std::max<int64_t>(0, begin + size);
  if (end < 0) end = std::max<int64_t>(0, end + size);
  beyond = begin > size || begin > end;
  if (beyond) return {};
  const auto byte_at = [&](int64_t character) {
    size_t at = 0;
    for (; character > 0 && at < text.size(); --character) at += character_at(text, at).bytes;
    return at;
  };
  const size_t from = byte_at(begin);
  return text.substr(from, byte_at(std::min(end, size)) - from);
}

absl::StatusOr<Value> begins_or_ends(const std::string& text, bool begins, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {begins ? "prefix" : "suffix", "start", "end"}));
  TITAN_ASSIGN_OR_RETURN(const int64_t from, bound.whole(1, 0));
  TITAN_ASSIGN_OR_RETURN(const int64_t to, bound.whole(2, INT64_MAX));
  bool beyond = false;
  const std::string_view part = part_of(text, from, to, beyond);
  const Sequence* several = as_sequence(bound.at(0));
  std::vector<Value> affixes = {bound.at(0)};
  if (several != nullptr && several->kind == Sequence::Kind::kTuple) affixes = several->items;
  for (const Value& affix : affixes) {
    const std::string* wanted = as_text(affix);
    if (wanted == nullptr) return absl::InvalidArgumentError("takes a string or a tuple of strings");
    if (!beyond && (begins ? part.starts_with(*wanted) : part.ends_with(*wanted))) return true;
  }
  return false;
}

absl::StatusOr<Value> find_in(const std::string& text, bool last, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"sub", "start", "end"}));
  TITAN_ASSIGN_OR_RETURN(const std::string wanted, bound.text(0, ""));
  TITAN_ASSIGN_OR_RETURN(const int64_t from, bound.whole(1, 0));
  TITAN_ASSIGN_OR_RETURN(const int64_t to, bound.whole(2, INT64_MAX));
  bool beyond = false;
  const std::string_view part = part_of(text, from, to, beyond);
  if (beyond) return int64_t{-1};
  const size_t at = last ? part.rfind(wanted) : part.find(wanted);
  if (at == std::string_view::npos) return int64_t{-1};
  return length(std::string_view(text).substr(0, static_cast<size_t>(part.data() - text.data()) + at));
}

absl::StatusOr<Value> split_text(const std::string& text, bool right, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"sep", "maxsplit"}));
  TITAN_ASSIGN_OR_RETURN(const auto separator, bound.optional_text(0));
  TITAN_ASSIGN_OR_RETURN(const int64_t most, bound.whole(1, -1));
  if (separator && separator->empty()) return absl::InvalidArgumentError("the separator is empty");
  return text_list(right ? split_from_the_right(text, separator, most) : split(text, separator, most));
}

absl::StatusOr<Value> partition(const std::string& text, bool last, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"sep"}));
  TITAN_ASSIGN_OR_RETURN(const std::string separator, bound.text(0, ""));
  if (separator.empty()) return absl::InvalidArgumentError("the separator is empty");
  const size_t at = last ? text.rfind(separator) : text.find(separator);
  std::vector<Value> parts = {text, "", ""};
  for (Value& part : parts) part = std::string();
  if (at == std::string::npos) {
    parts[last ? 2 : 0] = text;
  } else {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  }
  return list(std::move(parts), Sequence::Kind::kTuple);
}

absl::StatusOr<Value> replaced(Run& run, const std::string& text, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"old", "new", "count"}));
  TITAN_ASSIGN_OR_RETURN(const std::string old, bound.text(0, ""));
  TITAN_ASSIGN_OR_RETURN(const std::string with, bound.text(1, ""));
  TITAN_ASSIGN_OR_RETURN(const int64_t most, bound.whole(2, -1));
  return replaced_text(run, text, old, with, most);
}

absl::StatusOr<Value> joined(Run& run, const std::string& text, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"iterable"}));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> items, items_of(run, bound.at(0)));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string* item = as_text(items[i]);
    if (item == nullptr) return absl::InvalidArgumentError(absl::StrCat("item ", i, " is not a string"));
    absl::StrAppend(&out, i > 0 ? text : "", *item);
    TITAN_RETURN_IF_ERROR(run.check_bytes(static_cast<int64_t>(out.size())));
  }
  return out;
}

absl::StatusOr<Value> stripped(const std::string& text, const std::string& name, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"chars"}));
  TITAN_ASSIGN_OR_RETURN(const auto set, bound.optional_text(0));
  return strip(text, set, name != "rstrip", name != "lstrip");
}

absl::StatusOr<Value> without_affix(const std::string& text, bool prefix, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"affix"}));
  TITAN_ASSIGN_OR_RETURN(const std::string affix, bound.text(0, ""));
  if (prefix) return text.starts_with(affix) ? text.substr(affix.size()) : text;
  return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
}

absl::StatusOr<Value> counted(const std::string& text, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"sub"}));
  TITAN_ASSIGN_OR_RETURN(const std::string wanted, bound.text(0, ""));
  if (wanted.empty()) return length(text) + 1;
  return static_cast<int64_t>(split(text, wanted, -1).size()) - 1;
}

// Returns str.isdigit and so on. Except for isspace, fails beyond ASCII, where Unicode's rules apply.
absl::StatusOr<Value> is_all(const std::string& text, const std::string& name) {
  bool all = !text.empty(), some = false;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    at += c.bytes;
    if (name != "isspace" && c.code >= 0x80) {
      return absl::InvalidArgumentError("is not supported for text beyond ASCII");
    }
    const auto letter = static_cast<unsigned char>(c.code);
    if (name == "isspace") all &= is_space(c.code);
    if (name == "isdigit") all &= absl::ascii_isdigit(letter);
    if (name == "isalpha") all &= absl::ascii_isalpha(letter);
    if (name == "isalnum") all &= absl::ascii_isalnum(letter);
    if (name == "isupper") all &= !absl::ascii_islower(letter);
    if (name == "islower") all &= !absl::ascii_isupper(letter);
    some |= absl::ascii_isalpha(letter);
  }
  return all && (some || (name != "isupper" && name != "islower"));
}

absl::StatusOr<Value> lines_of(const std::string& text, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  return text_list(split_lines(text));
}

absl::StatusOr<Value> changed_case(const std::string& text, const std::string& name, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  if (name == "lower") return with_case(text, Case::kLower);
  if (name == "upper") return with_case(text, Case::kUpper);
  return with_case(text, name == "title" ? Case::kTitle : Case::kCapitalized);
}

absl::StatusOr<Value> of_text(Run& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(run.check_bytes(static_cast<int64_t>(text.size())));
  if (name == "strip" || name == "lstrip" || name == "rstrip") return stripped(text, name, arguments);
  if (name == "startswith" || name == "endswith") return begins_or_ends(text, name == "startswith", arguments);
  if (name == "find" || name == "rfind") return find_in(text, name == "rfind", arguments);
  if (name == "split" || name == "rsplit") return split_text(text, name == "rsplit", arguments);
  if (name == "partition" || name == "rpartition") return partition(text, name == "rpartition", arguments);
  if (name == "removeprefix" || name == "removesuffix") return without_affix(text, name == "removeprefix", arguments);
  if (name == "replace") return replaced(run, text, arguments);
  if (name == "join") return joined(run, text, arguments);
  if (name == "count") return counted(text, arguments);
  if (name == "splitlines") return lines_of(text, arguments);
  if (name.starts_with("is")) return is_all(text, name);
  return changed_case(text, name, arguments);
}

absl::StatusOr<Value> of_mapping(const Mapping& mapping, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"key", "default"}));
    const Value* found = mapping.find(bound.at(0));
    return found == nullptr ? bound.at(1) : *found;
  }
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  std::vector<Value> all;
  for (const auto& [key, value] : mapping.entries) {
    if (name == "items") all.push_back(list({key, value}, Sequence::Kind::kTuple));
    if (name == "keys") all.push_back(key);
    if (name == "values") all.push_back(value);
  }
  return list(std::move(all), Sequence::Kind::kView);
}

absl::StatusOr<Value> count_in(Run& run, const Sequence& sequence, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"value"}));
  TITAN_RETURN_IF_ERROR(run.spend(sequence.extent.weight));
  return static_cast<int64_t>(std::count_if(sequence.items.begin(), sequence.items.end(),
                                            [&](const Value& item) { return equal(item, bound.at(0)); }));
}

absl::StatusOr<Value> of_loop(const Loop& loop, const std::string& name, const Arguments& arguments) {
  if (name == "cycle") {
    if (arguments.positional.empty()) return absl::InvalidArgumentError("takes one value or more");
    return arguments.positional[loop.index0 % static_cast<int64_t>(arguments.positional.size())];
  }
  const bool same = loop.seen && std::equal(arguments.positional.begin(), arguments.positional.end(),
                                            loop.last_seen.begin(), loop.last_seen.end(), equal);
  loop.seen = true;
  loop.last_seen = arguments.positional;
  return !same;
}

}  // namespace

bool is_method(std::string_view name) {
  return among(kStringMethods, name) || among(kDictMethods, name) || among(kLoopMethods, name);
}

bool has_method(const Value& self, const std::string& name) {
  if (as_text(self) != nullptr) return among(kStringMethods, name);
  if (as_mapping(self) != nullptr) return among(kDictMethods, name);
  const Sequence* sequence = as_sequence(self);
  if (sequence != nullptr) return sequence->kind <= Sequence::Kind::kRange && among(kListMethods, name);
  return std::holds_alternative<const Loop*>(self) && among(kLoopMethods, name);
}

absl::StatusOr<Value> call_method(Run& run, const Value& self, const std::string& name, const Arguments& arguments) {
  if (const std::string* text = as_text(self)) return of_text(run, *text, name, arguments);
  if (const Mapping* entries = as_mapping(self)) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(entries->entries.size())));
    return of_mapping(*entries, name, arguments);
  }
  if (const Sequence* sequence = as_sequence(self)) return count_in(run, *sequence, arguments);
  return of_loop(*std::get<const Loop*>(self), name, arguments);
}

}  // namespace titan::jinja
