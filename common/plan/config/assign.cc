#include "common/plan/config/assign.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/nearest.h"
#include "common/base/text/utf8.h"
#include "common/plan/config/list_values.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using Kind = RawValue::Kind;
using Outcome = std::optional<FieldError>;

// Larger maxima only keep products within 64 bits; messages name them only when a value exceeds them.
constexpr double kSanityLimit = 1 << 20;

// absl::string_view is not std::string_view in the packaged version.
std::string str(std::string_view text) { return std::string(text); }

bool means_none(const RawValue& raw) {
  if (raw.kind == Kind::kNull) return true;
  if (raw.kind != Kind::kWord && raw.kind != Kind::kString) return false;
  return raw.text == "None" || raw.text == "none" || raw.text == "null";
}

FieldError wrong_type(const Field& field, const RawValue& raw) {
  const bool word = raw.kind == Kind::kWord;
  return {absl::StrCat("expects ", expected(field), word ? "" : ", not ", word ? "" : str(kind_name(raw.kind))), ""};
}

Outcome check_bounds(const Field& field, double value) {
  if (field.special.has_value() && value == *field.special) return std::nullopt;
  const bool low = value < field.minimum || (field.positive && value <= 0);
  if (!low && value <= field.maximum) return std::nullopt;
  if (!low && field.maximum >= kSanityLimit) {
    return FieldError{absl::StrCat("out of range: at most ", static_cast<std::int64_t>(field.maximum)), ""};
  }
  return FieldError{absl::StrCat("out of range: expects ", expected(field)), ""};
}

Outcome check_allowed(const Field& field, const std::string& value) {
  if (field.allowed.empty() || field.allows_library_names) return std::nullopt;
  std::vector<std::string> choices;
  for (const std::string_view choice : field.allowed) {
    if (choice == value) return std::nullopt;
    choices.emplace_back(choice);
  }
  const std::string near = nearest(value, choices);
  return FieldError{absl::StrCat("not one of the allowed values ", absl::StrJoin(choices, ", ")),
                    near.empty() ? "" : absl::StrCat("did you mean ", near, "?")};
}

// Replaces a value by its listed spelling if the field ignores case.
void restore_case(const Field& field, std::string& value) {
  for (const std::string_view choice : field.allowed) {
    if (field.any_case && absl::EqualsIgnoreCase(str(choice), value)) value = str(choice);
  }
}

// Rejects text that JSON, messages or file names cannot contain.
Outcome check_text(const std::string& value) {
  if (!text::is_utf8(value)) return FieldError{"is not valid UTF-8", ""};
  if (value.find('\0') != std::string::npos) return FieldError{"contains a null character", ""};
  return std::nullopt;
}

Outcome set(const Field& field, const RawValue& raw, bool& member) {
  if (raw.kind == Kind::kBool) {
    member = raw.boolean;
    return std::nullopt;
  }
  if (raw.kind == Kind::kWord) {
    const std::string word = absl::AsciiStrToLower(raw.text);
    if (word == "true" || word == "false") {
      member = word == "true";
      return std::nullopt;
    }
  }
  return wrong_type(field, raw);
}

template <typename Int>
Outcome set_integer(const Field& field, const RawValue& raw, Int& member) {
  std::int64_t value = raw.integer;
  if (raw.kind == Kind::kWord) {
    if (!absl::SimpleAtoi(raw.text, &value)) return wrong_type(field, raw);
  } else if (raw.kind != Kind::kInt) {
    return wrong_type(field, raw);
  }
  if (Outcome bad = check_bounds(field, static_cast<double>(value))) return bad;
  if (value < std::numeric_limits<Int>::min() || value > std::numeric_limits<Int>::max()) {
    return FieldError{absl::StrCat("out of range: at most ", std::numeric_limits<Int>::max()), ""};
  }
  member = static_cast<Int>(value);
  return std::nullopt;
}

Outcome set(const Field& field, const RawValue& raw, int& member) { return set_integer(field, raw, member); }
Outcome set(const Field& field, const RawValue& raw, std::int64_t& member) { return set_integer(field, raw, member); }

Outcome set(const Field& field, const RawValue& raw, double& member) {
  double value = raw.kind == Kind::kInt ? static_cast<double>(raw.integer) : raw.number;
  if (raw.kind == Kind::kWord) {
    if (!absl::SimpleAtod(raw.text, &value)) return wrong_type(field, raw);
  } else if (raw.kind != Kind::kInt && raw.kind != Kind::kFloat) {
    return wrong_type(field, raw);
  }
  if (!std::isfinite(value)) return FieldError{absl::StrCat("expects a finite number: ", expected(field)), ""};
  if (Outcome bad = check_bounds(field, value)) return bad;
  member = value;
  return std::nullopt;
}

Outcome set(const Field& field, const RawValue& raw, std::string& member) {
  std::string value = raw.text;
  if (raw.kind == Kind::kInt && field.number_as_text) {
    value = absl::StrCat(raw.integer);
  } else if (raw.kind != Kind::kString && raw.kind != Kind::kWord) {
    return wrong_type(field, raw);
  }
  if (Outcome bad = check_text(value)) return bad;
  restore_case(field, value);
  if (Outcome bad = check_allowed(field, value)) return bad;
  member = std::move(value);
  return std::nullopt;
}

// A list may also be one text, as on the command line.
Outcome set(const Field& field, const RawValue& raw, std::vector<std::string>& member) {
  std::vector<std::string> values;
  if (raw.kind == Kind::kString || raw.kind == Kind::kWord) {
    if (Outcome bad = read_text_list(raw.text, values)) return bad;
  } else if (raw.kind == Kind::kList) {
    for (const RawValue& item : raw.items) {
      if (item.kind != Kind::kString && item.kind != Kind::kWord) return wrong_type(field, item);
      values.push_back(item.text);
    }
  } else {
    return wrong_type(field, raw);
  }
  for (const std::string& value : values) {
    if (Outcome bad = check_text(value)) return bad;
    if (Outcome bad = check_allowed(field, value)) return bad;
  }
  member = std::move(values);
  return std::nullopt;
}

Outcome set(const Field& field, const RawValue& raw, StringLists& member) {
  StringLists lists;
  // A text contains JSON: [["tok_embeddings","layers.0"],["layers.1","norm"]].
  if (raw.kind == Kind::kWord || raw.kind == Kind::kString) {
    const nlohmann::json json = nlohmann::json::parse(raw.text, nullptr, false);
    if (!json.is_array()) return wrong_type(field, raw);
    for (const nlohmann::json& list : json) {
      if (!list.is_array()) return wrong_type(field, raw);
      lists.emplace_back();
      for (const nlohmann::json& item : list) {
        if (!item.is_string()) return wrong_type(field, raw);
        lists.back().push_back(item.get<std::string>());
      }
    }
  } else if (raw.kind == Kind::kList) {
    for (const RawValue& list : raw.items) {
      if (list.kind != Kind::kList) return wrong_type(field, list);
      lists.emplace_back();
      for (const RawValue& item : list.items) {
        if (item.kind != Kind::kString && item.kind != Kind::kWord) return wrong_type(field, item);
        lists.back().push_back(item.text);
      }
    }
  } else {
    return wrong_type(field, raw);
  }
  for (const auto& list : lists) {
    for (const std::string& value : list) {
      if (Outcome bad = check_text(value)) return bad;
    }
  }
  member = std::move(lists);
  return std::nullopt;
}

Outcome set(const Field& field, const RawValue& raw, std::vector<ParamGroup>& member) {
  if (raw.kind != Kind::kList && raw.kind != Kind::kWord && raw.kind != Kind::kString) return wrong_type(field, raw);
  return read_group_list(raw, member);
}

Outcome set(const Field& field, const RawValue& raw, std::vector<DataSource>& member) {
  if (raw.kind != Kind::kList && raw.kind != Kind::kWord && raw.kind != Kind::kString) return wrong_type(field, raw);
  return read_source_list(raw, member);
}

Outcome set(const Field& field, const RawValue& raw, std::vector<std::int64_t>& member) {
  const std::optional<std::vector<RawValue>> items = integers_of(raw);
  if (!items) return wrong_type(field, raw);
  std::vector<std::int64_t> values(items->size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (Outcome bad = set_integer(field, (*items)[i], values[i])) return bad;
  }
  member = std::move(values);
  return std::nullopt;
}

template <typename T>
Outcome set(const Field& field, const RawValue& raw, std::optional<T>& member) {
  if (means_none(raw)) {
    member.reset();
    return std::nullopt;
  }
  T value{};
  Outcome bad = set(field, raw, value);
  if (!bad) member = std::move(value);
  return bad;
}

std::string bounds(const Field& field) {
  std::string text = absl::StrCat(field.unit.empty() ? "" : absl::StrCat(" (", str(field.unit), ")"));
  const bool low = std::isfinite(field.minimum), high = field.maximum < kSanityLimit;
  if (field.positive) {
    absl::StrAppend(&text, " above 0");
  } else if (low && high) {
    absl::StrAppend(&text, " from ", field.minimum, " to ", field.maximum);
  } else if (low) {
    absl::StrAppend(&text, ", at least ", field.minimum);
  }
  if (field.special.has_value()) absl::StrAppend(&text, ", or ", *field.special);
  return text;
}

template <typename T>
std::string type_text(const Field& field, const T*) {
  std::string choices =
      absl::StrJoin(field.allowed, ", ", [](std::string* out, std::string_view choice) { out->append(choice); });
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::int64_t>)
    return absl::StrCat("an integer", bounds(field));
  if constexpr (std::is_same_v<T, double>) return absl::StrCat("a number", bounds(field));
  if constexpr (std::is_same_v<T, std::string>) {
    if (choices.empty()) return field.path ? "a path (string)" : "a string";
    return absl::StrCat("one of ", choices, field.allows_library_names ? ", or one that a library defines" : "");
  }
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return choices.empty() ? "a list of strings" : absl::StrCat("a list of ", choices);
  }
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return absl::StrCat("a list of integers", bounds(field));
  if constexpr (std::is_same_v<T, std::vector<ParamGroup>>) return group_list_form();
  if constexpr (std::is_same_v<T, std::vector<DataSource>>) return source_list_form();
  return "a list of lists of strings";
}

template <typename T>
std::string type_text(const Field& field, const std::optional<T>*) {
  return absl::StrCat(type_text(field, static_cast<const T*>(nullptr)), ", or None");
}

}  // namespace

std::optional<FieldError> assign(const Field& field, const RawValue& raw) {
  return std::visit([&](auto* member) { return set(field, raw, *member); }, field.ref);
}

std::string expected(const Field& field) {
  return std::visit([&](auto* member) { return type_text(field, member); }, field.ref);
}

}  // namespace titan::config
