#pragma once

// Reads the keys that hold lists (of tables such as [[optimizer.param_groups]], of integers, or of strings) from files
// and from command lines, where a list is one text. Writes lists of tables as JSON.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// Returns the items of a list of tables, which on a command line is JSON text; nothing if it is not a list. The caller
// checks that the items are tables.
std::optional<std::vector<RawValue>> tables_of(const RawValue& raw);

// Sets members of one table, each at most once. set() returns what is wrong with the name or the value.
class MemberSetter {
 public:
  explicit MemberSetter(std::vector<Field> fields) : fields_(std::move(fields)) {}
  std::optional<FieldError> set(const std::string& name, const RawValue& value);

 private:
  std::vector<Field> fields_;
  std::vector<std::string> seen_;
};

// Returns a table's members as JSON, omitting those that are not set.
nlohmann::json table_json(const std::vector<Field>& fields);

// Returns what a key with tables of these fields accepts, for messages and help. Each table must have the first member.
std::string table_list_form(const std::vector<Field>& fields);

// Reads [[optimizer.param_groups]], a list of tables or its JSON text. Also accepts torchtitan's spelling:
// optimizer_name, and optimizer_kwargs with betas and adjust_lr_fn. An error names the group.
std::optional<FieldError> read_group_list(const RawValue& raw, std::vector<ParamGroup>& groups);

// Returns the groups as JSON, omitting members that are not set.
nlohmann::json group_list_json(const std::vector<ParamGroup>& groups);

// Returns what the key accepts, for messages and help.
std::string group_list_form();

// Reads [[training.dataloader.sources]], a list of tables or its JSON text. An error names the source.
std::optional<FieldError> read_source_list(const RawValue& raw, std::vector<DataSource>& sources);

// Returns the sources as JSON, omitting members that are not set.
nlohmann::json source_list_json(const std::vector<DataSource>& sources);

// Returns what the key accepts, for messages and help.
std::string source_list_form();

// Returns the items of a list of integers, which on a command line is "4,8,12" or "[4, 8, 12]"; nothing if it is
// neither a list nor an integer. The caller checks the items.
std::optional<std::vector<RawValue>> integers_of(const RawValue& raw);

// Reads a list of strings from one text, as on a command line: a JSON array ('["a, b", "c"]') if it is in brackets,
// else comma-separated items. Returns a complaint for brackets around anything but a JSON array of strings.
std::optional<FieldError> read_text_list(const std::string& text, std::vector<std::string>& items);

}  // namespace titan::config
