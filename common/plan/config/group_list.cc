#include "common/plan/config/group_list.h"

#include "absl/strings/str_cat.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/table_list.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using Kind = Raw::Kind;

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

  std::optional<Complaint> set(const std::string& name, const Raw& value) { return setter_.set(name, value); }

  ParamGroup group_;
  MemberSetter setter_{fields_of(group_)};
};

}  // namespace

std::optional<Complaint> read_group_list(const Raw& raw, std::vector<ParamGroup>& groups) {
  const std::optional<std::vector<Raw>> tables = tables_of(raw);
  if (!tables) return Complaint{absl::StrCat("expects ", group_list_form()), ""};
  std::vector<ParamGroup> all;
  for (const Raw& item : *tables) {
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
  for (ParamGroup group : groups) list.push_back(table_json(fields_of(group)));
  return list;
}

std::string group_list_form() {
  ParamGroup group;
  return table_list_form(fields_of(group));
}

}  // namespace titan::config
