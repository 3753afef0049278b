#pragma once

// A key that holds a list of tables, such as [[optimizer.param_groups]]: its tables and their members, from what files
// and command lines hold, and back.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// The tables of a list, which a command line has as text in JSON; none: it is no list.
std::optional<std::vector<Raw>> tables_of(const Raw& raw);

// Sets members of one table, each once.
class MemberSetter {
 public:
  explicit MemberSetter(std::vector<Field> fields) : fields_(std::move(fields)) {}
  std::optional<Complaint> set(const std::string& name, const Raw& value);

 private:
  std::vector<Field> fields_;
  std::vector<std::string> seen_;
};

// A table's members; those that are not set are left out.
nlohmann::json table_json(const std::vector<Field>& fields);

// What the key takes, for messages and help. Each table needs the first member.
std::string table_list_form(const std::vector<Field>& fields);

}  // namespace titan::config
