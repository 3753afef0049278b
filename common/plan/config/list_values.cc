#include "common/plan/config/list_values.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text/nearest.h"
#include "common/plan/config/fields.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using Kind = RawValue::Kind;

std::vector<std::string> names_of(const std::vector<Field>& fields) {
  std::vector<std::string> names;
  for (const Field& field : fields) names.emplace_back(field.key);
  return names;
}

template <typename T>
void add(nlohmann::json& object, const std::string& key, const T& value) {
  object[key] = value;
}
template <typename T>
void add(nlohmann::json& object, const std::string& key, const std::optional<T>& value) {
  if (value.has_value()) object[key] = *value;
}
void add(nlohmann::json& object, const std::string& key, const std::vector<std::string>& value) {
  if (!value.empty()) object[key] = value;
}
void add(nlohmann::json&, const std::string&, const std::optional<StringLists>&) {}  // Tables have no such members.
void add(nlohmann::json&, const std::string&, const std::vector<std::int64_t>&) {}
void add(nlohmann::json&, const std::string&, const std::vector<ParamGroup>&) {}
void add(nlohmann::json&, const std::string&, const std::vector<DataSource>&) {}

}  // namespace

std::optional<std::vector<RawValue>> tables_of(const RawValue& raw) {
  if (raw.kind == Kind::kList) return raw.items;
  std::vector<Problem> problems;
  RawValue root = read_json(absl::StrCat("{\"list\": ", raw.text, "\n}"), "", problems);
  if (!problems.empty() || root.members.size() != 1 || root.members[0].value.kind != Kind::kList) return std::nullopt;
  return std::move(root.members[0].value.items);
}

std::optional<FieldError> MemberSetter::set(const std::string& name, const RawValue& value) {
  if (std::find(seen_.begin(), seen_.end(), name) != seen_.end()) {
    return FieldError{absl::StrCat(name, ": set twice"), ""};
  }
  seen_.push_back(name);
  for (const Field& field : fields_) {
    if (field.key != name) continue;
    std::optional<FieldError> bad = assign(field, value);
    if (bad) bad->message = absl::StrCat(name, " = ", display(value), ": ", bad->message);
    return bad;
  }
  const std::string near = nearest(name, names_of(fields_));
  return FieldError{absl::StrCat("unknown member ", printable(name)),
                    near.empty() ? absl::StrCat("members are ", absl::StrJoin(names_of(fields_), ", "))
                                 : absl::StrCat("did you mean ", near, "?")};
}

nlohmann::json table_json(const std::vector<Field>& fields) {
  nlohmann::json object = nlohmann::json::object();
  for (const Field& field : fields) {
    std::visit([&](auto* member) { add(object, std::string(field.key), *member); }, field.ref);
  }
  return object;
}

std::string table_list_form(const std::vector<Field>& fields) {
  const std::vector<std::string> names = names_of(fields);
  return absl::StrCat("a list of tables (JSON on the command line) with ", names.front(), " and any of ",
                      absl::StrJoin(names.begin() + 1, names.end(), ", "));
}

namespace {

// Reads one group, member by member.
class GroupReader {
 public:
  std::optional<FieldError> read(const RawValue& table) {
    if (table.kind != Kind::kTable) {
      return FieldError{absl::StrCat("expects a table with a pattern, not ", std::string(kind_name(table.kind))), ""};
    }
    for (const Member& member : table.members) {
      if (std::optional<FieldError> bad = read(member.name, member.value)) return bad;
    }
    if (group_.pattern.empty()) return FieldError{"has no pattern", "set pattern = \"...\""};
    return std::nullopt;
  }
  ParamGroup take() { return std::move(group_); }

 private:
  std::optional<FieldError> read(const std::string& name, const RawValue& value) {
    if (name == "optimizer_name") return set("name", value);
    if (name == "adjust_lr_fn") return set("adjust_lr", value);
    if (name == "betas") return read_betas(value);
    if (name != "optimizer_kwargs") return set(name, value);
    if (value.kind != Kind::kTable) return FieldError{"optimizer_kwargs: expects a table", ""};
    for (const Member& member : value.members) {
      if (std::optional<FieldError> bad = read(member.name, member.value)) return bad;
    }
    return std::nullopt;
  }

  std::optional<FieldError> read_betas(const RawValue& value) {
    if (value.kind != Kind::kList || value.items.size() != 2) return FieldError{"betas: expects a list of two", ""};
    if (std::optional<FieldError> bad = set("beta1", value.items[0])) return bad;
    return set("beta2", value.items[1]);
  }

  std::optional<FieldError> set(const std::string& name, const RawValue& value) { return setter_.set(name, value); }

  ParamGroup group_;
  MemberSetter setter_{fields_of(group_)};
};

}  // namespace

std::optional<FieldError> read_group_list(const RawValue& raw, std::vector<ParamGroup>& groups) {
  const std::optional<std::vector<RawValue>> tables = tables_of(raw);
  if (!tables) return FieldError{absl::StrCat("expects ", group_list_form()), ""};
  std::vector<ParamGroup> all;
  for (const RawValue& item : *tables) {
    GroupReader reader;
    if (std::optional<FieldError> bad = reader.read(item)) {
      bad->message = absl::StrCat("group ", all.size() + 1, ": ", bad->message);
      return bad;
    }
    all.push_back(reader.take());
  }
  groups = std::move(all);
  return std::nullopt;
}

nlohmann::json group_list_json(const std::vector<ParamGroup>& groups) {
  nlohmann::json list = nlohmann::json::array();
  for (ParamGroup group : groups) list.push_back(table_json(fields_of(group)));
  return list;
}

std::string group_list_form() {
  ParamGroup group;
  return table_list_form(fields_of(group));
}

namespace {

std::optional<FieldError> read_source(const RawValue& table, DataSource& source) {
  if (table.kind != RawValue::Kind::kTable) {
    return FieldError{absl::StrCat("expects a table with a name, not ", std::string(kind_name(table.kind))), ""};
  }
  MemberSetter setter(fields_of(source));
  for (const Member& member : table.members) {
    if (std::optional<FieldError> bad = setter.set(member.name, member.value)) return bad;
  }
  if (source.name.empty()) return FieldError{"has no name", "set name = \"...\""};
  return std::nullopt;
}

}  // namespace

std::optional<FieldError> read_source_list(const RawValue& raw, std::vector<DataSource>& sources) {
  const std::optional<std::vector<RawValue>> tables = tables_of(raw);
  if (!tables) return FieldError{absl::StrCat("expects ", source_list_form()), ""};
  std::vector<DataSource> all(tables->size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::optional<FieldError> bad = read_source((*tables)[i], all[i])) {
      bad->message = absl::StrCat("source ", i + 1, ": ", bad->message);
      return bad;
    }
  }
  sources = std::move(all);
  return std::nullopt;
}

nlohmann::json source_list_json(const std::vector<DataSource>& sources) {
  nlohmann::json list = nlohmann::json::array();
  for (DataSource source : sources) list.push_back(table_json(fields_of(source)));
  return list;
}

std::string source_list_form() {
  DataSource source;
  return table_list_form(fields_of(source));
}

std::optional<std::vector<RawValue>> integers_of(const RawValue& raw) {
  if (raw.kind == RawValue::Kind::kList) return raw.items;
  if (raw.kind == RawValue::Kind::kInt) return std::vector<RawValue>{raw};
  if (raw.kind != RawValue::Kind::kString && raw.kind != RawValue::Kind::kWord) return std::nullopt;
  absl::string_view text = absl::StripAsciiWhitespace(raw.text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<RawValue> items;
  for (const auto piece : absl::StrSplit(text, ',')) {
    const auto word = absl::StripAsciiWhitespace(piece);
    if (!word.empty()) items.push_back(raw_word(std::string(word)));
  }
  return items;
}

std::optional<FieldError> read_text_list(const std::string& text, std::vector<std::string>& items) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  std::vector<std::string> found;
  if (absl::StartsWith(stripped, "[") && absl::EndsWith(stripped, "]")) {
    const nlohmann::json json = nlohmann::json::parse(stripped.begin(), stripped.end(), nullptr, false);
    const FieldError wrong{"is in brackets but is not a JSON array of strings", R"(write '["a, b", "c"]', or a,b)"};
    if (!json.is_array()) return wrong;
    for (const nlohmann::json& item : json) {
      if (!item.is_string()) return wrong;
      found.push_back(item.get<std::string>());
    }
  } else {
    for (const absl::string_view piece : absl::StrSplit(text, ',')) {
      const std::string item(absl::StripAsciiWhitespace(piece));
      if (!item.empty()) found.push_back(item);
    }
  }
  items = std::move(found);
  return std::nullopt;
}

}  // namespace titan::config
