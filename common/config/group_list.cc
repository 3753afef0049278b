#include "common/config/group_list.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/fields.h"
#include "common/text/nearest.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using Kind = Raw::Kind;

std::vector<std::string> member_names() {
  ParamGroup group;
  std::vector<std::string> names;
  for (const Field& field : fields_of(group)) names.emplace_back(field.key);
  return names;
}

// The list that a text holds; none where it is none.
std::optional<Raw> parse(const std::string& text) {
  std::vector<Problem> problems;
  Raw root = read_json(absl::StrCat("{\"groups\": ", text, "\n}"), "", problems);
  if (!problems.empty() || root.members.size() != 1 || root.members[0].value.kind != Kind::kList) return std::nullopt;
  return std::move(root.members[0].value);
}

// One group, read member by member.
class GroupReader {
 public:
  std::optional<Complaint> read(const Raw& table) {
    if (table.kind != Kind::kTable) {
      return Complaint{absl::StrCat("expects a table with a pattern, not ", std::string(kind_name(table.kind))), ""};
    }
    for (const Member& member : table.members) {
      if (std::optional<Complaint> bad = read(member.name, member.value)) return bad;
    }
    if (group_.pattern.empty()) return Complaint{"has no pattern", "set pattern = \"...\""};
    return std::nullopt;
  }
  ParamGroup take() { return std::move(group_); }

 private:
  std::optional<Complaint> read(const std::string& name, const Raw& value) {
    if (name == "optimizer_name") return set("name", value);
    if (name == "adjust_lr_fn") return set("adjust_lr", value);
    if (name == "betas") return read_betas(value);
    if (name != "optimizer_kwargs") return set(name, value);
    if (value.kind != Kind::kTable) return Complaint{"optimizer_kwargs: expects a table", ""};
    for (const Member& member : value.members) {
      if (std::optional<Complaint> bad = read(member.name, member.value)) return bad;
    }
    return std::nullopt;
  }

  std::optional<Complaint> read_betas(const Raw& value) {
    if (value.kind != Kind::kList || value.items.size() != 2) return Complaint{"betas: expects a list of two", ""};
    if (std::optional<Complaint> bad = set("beta1", value.items[0])) return bad;
    return set("beta2", value.items[1]);
  }

  std::optional<Complaint> set(const std::string& name, const Raw& value) {
    for (const std::string& other : seen_) {
      if (other == name) return Complaint{absl::StrCat(name, ": set twice"), ""};
    }
    seen_.push_back(name);
    for (const Field& field : fields_of(group_)) {
      if (field.key != name) continue;
      std::optional<Complaint> bad = assign(field, value);
      if (bad) bad->message = absl::StrCat(name, " = ", display(value), ": ", bad->message);
      return bad;
    }
    const std::string near = nearest(name, member_names());
    return Complaint{absl::StrCat("unknown member ", printable(name)),
                     near.empty() ? absl::StrCat("members are ", absl::StrJoin(member_names(), ", "))
                                  : absl::StrCat("did you mean ", near, "?")};
  }

  ParamGroup group_;
  std::vector<std::string> seen_;
};

template <typename T>
void add(nlohmann::json& object, const std::string& key, const T& value) {
  object[key] = value;
}
template <typename T>
void add(nlohmann::json& object, const std::string& key, const std::optional<T>& value) {
  if (value.has_value()) object[key] = *value;
}
void add(nlohmann::json&, const std::string&, const std::optional<StringLists>&) {}  // No member is one of these.
void add(nlohmann::json&, const std::string&, const std::vector<ParamGroup>&) {}

}  // namespace

std::optional<Complaint> read_group_list(const Raw& raw, std::vector<ParamGroup>& groups) {
  std::optional<Raw> parsed;
  if (raw.kind != Kind::kList) {
    parsed = parse(raw.text);
    if (!parsed) return Complaint{absl::StrCat("expects ", group_list_form()), ""};
  }
  std::vector<ParamGroup> all;
  for (const Raw& item : (parsed ? *parsed : raw).items) {
    GroupReader reader;
    if (std::optional<Complaint> bad = reader.read(item)) {
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
  for (ParamGroup group : groups) {
    nlohmann::json object = nlohmann::json::object();
    for (const Field& field : fields_of(group)) {
      std::visit([&](auto* member) { add(object, std::string(field.key), *member); }, field.ref);
    }
    list.push_back(std::move(object));
  }
  return list;
}

std::string group_list_form() {
  const std::vector<std::string> names = member_names();
  return absl::StrCat("a list of tables (JSON on the command line) with pattern and any of ",
                      absl::StrJoin(names.begin() + 1, names.end(), ", "));
}

}  // namespace titan::config
