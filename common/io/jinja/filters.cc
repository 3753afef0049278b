#include "common/io/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/jinja/operations.h"
#include "common/io/jinja/repr.h"
#include "common/io/jinja/sequences.h"
#include "common/io/jinja/text.h"

namespace titan::jinja {
namespace {

Result trim(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"chars"}));
  TITAN_ASSIGN_OR_RETURN(const auto set, bound.optional_text(0));
  TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run, value));
  return strip(text, set, true, true);
}

template <Case kWanted>
Result cased(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run, value));
  return with_case(text, kWanted);
}

// Words begin after white space, "-" and opening brackets, unlike in str.title.
Result title(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  TITAN_ASSIGN_OR_RETURN(std::string text, to_text(run, value));
  TITAN_ASSIGN_OR_RETURN(text, with_case(text, Case::kLower));
  bool begins = true;
  for (char& c : text) {
    if (begins) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    begins = is_space(static_cast<unsigned char>(c)) || std::string_view("-({[<").find(c) != std::string_view::npos;
  }
  return text;
}

Result count(Run&, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  return length_of(value);
}

Result otherwise(Run&, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"default_value", "boolean"}));
  const bool missing = is_undefined(value) || (bound.flag(1, false) && !truth(value));
  if (!missing) return value;
  return bound.has(0) ? bound.at(0) : Value(std::string());
}

Result joined_with(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"d", "attribute"}));
  TITAN_ASSIGN_OR_RETURN(const std::string between, to_text(run, bound.has(0) ? bound.at(0) : std::string()));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> items, items_of(run, value));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (bound.has(1)) {
      TITAN_ASSIGN_OR_RETURN(item, attribute_at(run, item, bound.at(1)));
    }
    TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run, item));
    absl::StrAppend(&out, i > 0 ? between : "", text);
    TITAN_RETURN_IF_ERROR(run.check_bytes(static_cast<int64_t>(out.size())));
  }
  return out;
}

Result first(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> items, items_of(run, value));
  return items.empty() ? Value(Undefined{"there is no first item"}) : items.front();
}

Result last(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  TITAN_RETURN_IF_ERROR(length_of(value).status());  // Fails for a generator, which has no last item.
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> items, items_of(run, value));
  return items.empty() ? Value(Undefined{"there is no last item"}) : items.back();
}

Result as_list(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  TITAN_ASSIGN_OR_RETURN(std::vector<Value> items, items_of(run, value));
  return list(std::move(items));
}

Result string(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  return to_text(run, value);
}

std::optional<double> read_number(const Value& value) {
  if (const auto number = as_number(value)) return number;
  const std::string* text = as_text(value);
  double number = 0;
  if (text == nullptr || !absl::SimpleAtod(strip(*text, std::nullopt, true, true), &number)) return std::nullopt;
  return number;
}

Result whole(Run&, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"default"}));
  if (const auto* undefined = std::get_if<Undefined>(&value)) return absl::InvalidArgumentError(undefined->why);
  if (const auto number = as_integer(value)) return *number;
  int64_t exact = 0;
  const std::string* text = as_text(value);
  if (text != nullptr && absl::SimpleAtoi(strip(*text, std::nullopt, true, true), &exact)) return exact;
  const std::optional<double> number = read_number(value);
  if (number && std::fabs(*number) < 9e18) return static_cast<int64_t>(*number);
  return bound.has(0) ? bound.at(0) : Value(int64_t{0});
}

Result real(Run&, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"default"}));
  if (const auto* undefined = std::get_if<Undefined>(&value)) return absl::InvalidArgumentError(undefined->why);
  if (const auto number = read_number(value)) return *number;
  return bound.has(0) ? bound.at(0) : Value(0.0);
}

Result json(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::bind(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style{.ascii = bound.flag(0, false), .sorted = bound.flag(3, false)};
  if (const auto spaces = as_integer(bound.at(1))) {
    if (*spaces > 64) return absl::InvalidArgumentError("\"indent\" must be at most 64");
    style.indent = std::string(std::max<int64_t>(0, *spaces), ' ');
  } else {
    TITAN_ASSIGN_OR_RETURN(style.indent, bound.optional_text(1));
  }
  if (style.indent) style.comma = ",";
  if (const Sequence* two = as_sequence(bound.at(2))) {
    const bool texts = two->items.size() == 2 && as_text(two->items[0]) && as_text(two->items[1]);
    if (!texts) return absl::InvalidArgumentError("\"separators\" must be two strings");
    style.comma = *as_text(two->items[0]);
    style.colon = *as_text(two->items[1]);
  }
  return to_json_text(run, value, style);
}

Result replace_in(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"old", "new", "count"}));
  TITAN_ASSIGN_OR_RETURN(const std::string text, to_text(run, value));
  TITAN_ASSIGN_OR_RETURN(const std::string old, to_text(run, bound.at(0)));
  TITAN_ASSIGN_OR_RETURN(const std::string with, to_text(run, bound.at(1)));
  TITAN_ASSIGN_OR_RETURN(const int64_t most, is_none(bound.at(2)) ? int64_t{-1} : bound.whole(2, -1));
  return replaced_text(run, text, old, with, most);
}

Value pair(const Value& key, const Value& value) { return list({key, value}, Sequence::Kind::kTuple); }

Result items(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  std::vector<Value> all;
  const Mapping* entries = as_mapping(value);
  if (entries == nullptr && !is_undefined(value)) return absl::InvalidArgumentError("takes a mapping");
  if (entries != nullptr) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(entries->entries.size())));
    for (const auto& [key, item] : entries->entries) all.push_back(pair(key, item));
  }
  return list(std::move(all), Sequence::Kind::kGenerator);
}

// Returns the key of each item: the item itself or an attribute, in lower case unless `cases` is set.
absl::StatusOr<std::vector<Value>> keys_of(Run& run, const std::vector<Value>& items, bool cases,
                                           const Value& attribute) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    Value key = item;
    if (!is_none(attribute)) {
      TITAN_ASSIGN_OR_RETURN(key, attribute_at(run, item, attribute));
    }
    if (const std::string* text = as_text(key); text != nullptr && !cases) {
      TITAN_ASSIGN_OR_RETURN(key, with_case(*text, Case::kLower));
    }
    TITAN_RETURN_IF_ERROR(run.spend(1 + extent_of(key).weight));
    keys.push_back(std::move(key));
  }
  return keys;
}

// Returns the order of the keys, as indices of items.
absl::StatusOr<std::vector<size_t>> order_of(Run& run, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  int64_t weight = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    order[i] = i;
    weight += extent_of(keys[i]).weight;
  }
  TITAN_RETURN_IF_ERROR(run.spend(weight * 32));
  absl::Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) {
    const absl::StatusOr<int> compared = compare(keys[one], keys[other]);
    status.Update(compared.status());
    return reverse ? compared.value_or(0) > 0 : compared.value_or(0) < 0;
  });
  if (!status.ok()) return status;
  return order;
}

Result sort(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"reverse", "case_sensitive", "attribute"}));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> all, items_of(run, value));
  TITAN_ASSIGN_OR_RETURN(std::vector<Value> keys, keys_of(run, all, bound.flag(1, false), bound.at(2)));
  for (Value& key : keys) key = list({std::move(key)});  // Missing keys are equal, as in Jinja.
  TITAN_ASSIGN_OR_RETURN(const std::vector<size_t> order, order_of(run, keys, bound.flag(0, false)));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(all[i]);
  return list(std::move(sorted));
}

Result dictsort(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"case_sensitive", "by", "reverse"}));
  TITAN_ASSIGN_OR_RETURN(const std::string by, bound.text(1, "key"));
  const Mapping* entries = as_mapping(value);
  if (entries == nullptr || (by != "key" && by != "value")) {
    return absl::InvalidArgumentError("takes a mapping, and sorts it by \"key\" or \"value\"");
  }
  std::vector<Value> all;
  for (const auto& [key, item] : entries->entries) all.push_back(pair(key, item));
  const Value part = int64_t{by == "value"};
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(run, all, bound.flag(0, false), part));
  TITAN_ASSIGN_OR_RETURN(const std::vector<size_t> order, order_of(run, keys, bound.flag(2, false)));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(all[i]);
  return list(std::move(sorted));
}

Result unique(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"case_sensitive", "attribute"}));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> all, items_of(run, value));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(run, all, bound.flag(0, false), bound.at(1)));
  std::vector<Value> kept;
  std::vector<const Value*> seen;
  for (size_t i = 0; i < all.size(); ++i) {
    TITAN_RETURN_IF_ERROR(run.spend(static_cast<int64_t>(seen.size()) * extent_of(keys[i]).weight));
    if (!is_hashable(keys[i])) return absl::InvalidArgumentError("takes hashable items: no lists or mappings");
    if (std::any_of(seen.begin(), seen.end(), [&](const Value* key) { return equal(*key, keys[i]); })) continue;
    seen.push_back(&keys[i]);
    kept.push_back(all[i]);
  }
  return list(std::move(kept), Sequence::Kind::kGenerator);
}

template <bool kLargest>
Result extreme(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"case_sensitive", "attribute"}));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> all, items_of(run, value));
  if (all.empty()) return Undefined{"there is no item"};
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(run, all, bound.flag(0, false), bound.at(1)));
  TITAN_ASSIGN_OR_RETURN(const std::vector<size_t> order, order_of(run, keys, kLargest));
  return all[order[0]];
}

Result sum(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"attribute", "start"}));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> all, items_of(run, value));
  Value total = bound.has(1) ? bound.at(1) : Value(int64_t{0});
  for (const Value& item : all) {
    Value part = item;
    if (bound.has(0)) {
      TITAN_ASSIGN_OR_RETURN(part, attribute_at(run, item, bound.at(0)));
    }
    TITAN_ASSIGN_OR_RETURN(total, binary_operation(run, "+", total, part));
  }
  return total;
}

Result reverse(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  TITAN_ASSIGN_OR_RETURN(std::vector<Value> all, items_of(run, value));
  std::reverse(all.begin(), all.end());
  if (as_text(value) == nullptr) return list(std::move(all), Sequence::Kind::kGenerator);
  std::string text;
  for (const Value& character : all) text += *as_text(character);
  return text;
}

Result absolute(Run&, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(Bound::bind(arguments, {}).status());
  const auto number = as_integer(value);
  if (number && *number != INT64_MIN) return std::abs(*number);
  if (const auto* real = std::get_if<double>(&value)) return std::fabs(*real);
  return absl::InvalidArgumentError("takes a number");
}

Result rounded(Run&, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"precision", "method"}));
  TITAN_ASSIGN_OR_RETURN(const int64_t digits, bound.whole(0, 0));
  TITAN_ASSIGN_OR_RETURN(const std::string method, bound.text(1, "common"));
  const auto number = as_number(value);
  if (!number || digits < 0 || digits > 15)
    return absl::InvalidArgumentError("takes a number and a precision from 0 to 15");
  if (method == "common") {
    if (const auto whole = as_integer(value)) return *whole;
    double real = 0;
    if (!absl::SimpleAtod(absl::StrFormat("%.*f", static_cast<int>(digits), *number), &real)) return *number;
    return real;
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return std::ceil(*number * scale) / scale;
  if (method == "floor") return std::floor(*number * scale) / scale;
  return absl::InvalidArgumentError("\"method\" must be common, ceil or floor");
}

Result indent(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"width", "first", "blank"}));
  if (as_text(value) == nullptr) return absl::InvalidArgumentError("takes a string");
  std::string text = *as_text(value);
  std::string by;
  if (const std::string* given = as_text(bound.at(0))) {
    by = *given;
  } else {
    TITAN_ASSIGN_OR_RETURN(const int64_t width, bound.whole(0, 4));
    if (width > 1024) return absl::InvalidArgumentError("\"width\" must be at most 1024");
    by = std::string(std::max<int64_t>(0, width), ' ');
  }
  text += '\n';
  const std::vector<std::string> lines = split_lines(text);
  TITAN_RETURN_IF_ERROR(run.check_bytes(static_cast<int64_t>(text.size() + lines.size() * by.size())));
  std::string out = bound.flag(1, false) ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) absl::StrAppend(&out, "\n", lines[i].empty() && !bound.flag(2, false) ? "" : by);
    out += lines[i];
  }
  return out;
}

Arguments after_first(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.keywords = arguments.keywords;
  if (arguments.positional.size() > count) {
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                           arguments.positional.end());
  }
  return rest;
}

absl::StatusOr<std::string> name_among(const Arguments& arguments, size_t i, bool (*known)(std::string_view),
                                       const char* what) {
  const std::string* name = i < arguments.positional.size() ? as_text(arguments.positional[i]) : nullptr;
  if (name == nullptr || !known(*name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", what, " \"", name == nullptr ? "" : *name, "\" is not supported"));
  }
  return *name;
}

// Returns the items of a value; none for a false value, even one that cannot have items.
absl::StatusOr<std::vector<Value>> items_if_any(Run& run, const Value& value) {
  return truth(value) ? items_of(run, value) : std::vector<Value>();
}

Result map(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> all, items_if_any(run, value));
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    TITAN_ASSIGN_OR_RETURN(const Bound bound, Bound::bind(arguments, {"attribute", "default"}));
    for (const Value& item : all) {
      TITAN_ASSIGN_OR_RETURN(Value part, attribute_at(run, item, bound.at(0)));
      if (is_undefined(part) && bound.has(1)) part = bound.at(1);
      mapped.push_back(std::move(part));
    }
  } else {
    TITAN_ASSIGN_OR_RETURN(const std::string name, name_among(arguments, 0, is_filter, "filter"));
    for (const Value& item : all) {
      TITAN_ASSIGN_OR_RETURN(mapped.emplace_back(), apply_filter(run, name, item, after_first(arguments, 1)));
    }
  }
  return list(std::move(mapped), Sequence::Kind::kGenerator);
}

// Keeps the items for which a test returns kWanted; without a test, those whose truth is kWanted. With kAttribute,
// tests an attribute of each item.
template <bool kAttribute, bool kWanted>
Result select(Run& run, const Value& value, const Arguments& arguments) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<Value> all, items_if_any(run, value));
  const size_t test = kAttribute ? 1 : 0;
  if (arguments.positional.size() < test) return absl::InvalidArgumentError("needs the name of an attribute");
  std::string name;
  if (arguments.positional.size() > test) {
    TITAN_ASSIGN_OR_RETURN(name, name_among(arguments, test, is_test, "test"));
  }
  std::vector<Value> kept;
  for (const Value& item : all) {
    Value tested = item;
    if (kAttribute) {
      TITAN_ASSIGN_OR_RETURN(tested, attribute_at(run, item, arguments.positional[0]));
    }
    bool passes = truth(tested);
    if (!name.empty()) {
      TITAN_ASSIGN_OR_RETURN(passes, apply_test(run, name, tested, after_first(arguments, test + 1)));
    }
    if (passes == kWanted) kept.push_back(item);
  }
  return list(std::move(kept), Sequence::Kind::kGenerator);
}

// Chat templates escape nothing, so a safe text is like any other.
Result safe(Run& run, const Value& value, const Arguments& arguments) { return string(run, value, arguments); }

using Filter = Result (*)(Run&, const Value&, const Arguments&);

const std::map<std::string_view, Filter>& known_filters() {
  static const auto* const kFilters = new std::map<std::string_view, Filter>{{"abs", absolute},
                                                                             {"capitalize", cased<Case::kCapitalized>},
                                                                             {"count", count},
                                                                             {"d", otherwise},
                                                                             {"default", otherwise},
                                                                             {"dictsort", dictsort},
                                                                             {"first", first},
                                                                             {"float", real},
                                                                             {"indent", indent},
                                                                             {"int", whole},
                                                                             {"items", items},
                                                                             {"join", joined_with},
                                                                             {"last", last},
                                                                             {"length", count},
                                                                             {"list", as_list},
                                                                             {"lower", cased<Case::kLower>},
                                                                             {"map", map},
                                                                             {"max", extreme<true>},
                                                                             {"min", extreme<false>},
                                                                             {"reject", select<false, false>},
                                                                             {"rejectattr", select<true, false>},
                                                                             {"replace", replace_in},
                                                                             {"reverse", reverse},
                                                                             {"round", rounded},
                                                                             {"safe", safe},
                                                                             {"select", select<false, true>},
                                                                             {"selectattr", select<true, true>},
                                                                             {"sort", sort},
                                                                             {"string", string},
                                                                             {"sum", sum},
                                                                             {"title", title},
                                                                             {"tojson", json},
                                                                             {"trim", trim},
                                                                             {"unique", unique},
                                                                             {"upper", cased<Case::kUpper>}};
  return *kFilters;
}

}  // namespace

bool is_filter(std::string_view name) { return known_filters().contains(name); }

Result apply_filter(Run& run, const std::string& name, const Value& value, const Arguments& arguments) {
  TITAN_RETURN_IF_ERROR(run.enter());
  absl::StatusOr<Value> result = known_filters().at(name)(run, value, arguments);
  run.leave();
  if (!result.ok()) return annotate(result.status(), absl::StrCat("the filter \"", name, "\""));
  return result;
}

}  // namespace titan::jinja
