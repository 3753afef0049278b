#include "common/plan/config/table_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/nearest.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using Kind = Raw::Kind;

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
void add(nlohmann::json&, const std::string&, const std::optional<StringLists>&) {}  // No member is one of these.
void add(nlohmann::json&, const std::string&, const std::vector<std::int64_t>&) {}
void add(nlohmann::json&, const std::string&, const std::vector<ParamGroup>&) {}
void add(nlohmann::json&, const std::string&, const std::vector<DataSource>&) {}

}  // namespace

std::optional<std::vector<Raw>> tables_of(const Raw& raw) {
  if (raw.kind == Kind::kList) return raw.items;
  std::vector<Problem> problems;
  Raw root = read_json(absl::StrCat("{\"list\": ", raw.text, "\n}"), "", problems);
  if (!problems.empty() || root.members.size() != 1 || root.members[0].value.kind != Kind::kList) return std::nullopt;
  return std::move(root.members[0].value.items);
}

std::optional<Complaint> MemberSetter::set(const std::string& name, const Raw& value) {
  if (std::find(seen_.begin(), seen_.end(), name) != seen_.end()) {
    return Complaint{absl::StrCat(name, ": set twice"), ""};
  }
  seen_.push_back(name);
  for (const Field& field : fields_) {
    if (field.key != name) continue;
    std::optional<Complaint> bad = assign(field, value);
    if (bad) bad->message = absl::StrCat(name, " = ", display(value), ": ", bad->message);
    return bad;
  }
  const std::string near = nearest(name, names_of(fields_));
  return Complaint{absl::StrCat("unknown member ", printable(name)),
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

}  // namespace titan::config
