#include "common/plan/config/source_list.h"

#include "absl/strings/str_cat.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/table_list.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

std::optional<Complaint> read_source(const Raw& table, DataSource& source) {
  if (table.kind != Raw::Kind::kTable) {
    return Complaint{absl::StrCat("expects a table with a name, not ", std::string(kind_name(table.kind))), ""};
  }
  MemberSetter setter(fields_of(source));
  for (const Member& member : table.members) {
    if (std::optional<Complaint> bad = setter.set(member.name, member.value)) return bad;
  }
  if (source.name.empty()) return Complaint{"has no name", "set name = \"...\""};
  return std::nullopt;
}

}  // namespace

std::optional<Complaint> read_source_list(const Raw& raw, std::vector<DataSource>& sources) {
  const std::optional<std::vector<Raw>> tables = tables_of(raw);
  if (!tables) return Complaint{absl::StrCat("expects ", source_list_form()), ""};
  std::vector<DataSource> all(tables->size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::optional<Complaint> bad = read_source((*tables)[i], all[i])) {
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

}  // namespace titan::config
