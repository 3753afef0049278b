#pragma once

// Reads the keys that hold lists (of tables such as [[optimizer.param_groups]], of integers, or of strings) from files
// and command lines, where a list is one text, and writes lists of tables back as JSON.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// The tables of a list, which on a command line is JSON text. Nothing when it is not a list of tables.
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

// A table's members as JSON; those that are not set are left out.
nlohmann::json table_json(const std::vector<Field>& fields);

// What the key takes, for messages and help. Each table needs the first member.
std::string table_list_form(const std::vector<Field>& fields);

// Reads [[optimizer.param_groups]], a list of tables or its JSON text. Takes torchtitan's spelling too: optimizer_name,
// and optimizer_kwargs with betas and adjust_lr_fn. The complaint says what is wrong, and in which group.
std::optional<Complaint> read_group_list(const Raw& raw, std::vector<ParamGroup>& groups);

// The groups as JSON; members that are not set are left out.
nlohmann::json group_list_json(const std::vector<ParamGroup>& groups);

// What the key takes, for messages and help.
std::string group_list_form();

// Reads [[training.dataloader.sources]], a list of tables or its JSON text. The complaint says what is wrong, and in
// which source.
std::optional<Complaint> read_source_list(const Raw& raw, std::vector<DataSource>& sources);

// The sources as JSON; members that are not set are left out.
nlohmann::json source_list_json(const std::vector<DataSource>& sources);

// What the key takes, for messages and help.
std::string source_list_form();

// The items of a list of integers, which on a command line is "4,8,12" or "[4, 8, 12]". Nothing when it is not a list.
std::optional<std::vector<Raw>> integers_of(const Raw& raw);

// Reads a list of strings from one text, as on a command line: a JSON array ('["a, b", "c"]') when it is in brackets,
// else items between commas. Complains of brackets around what is not a JSON array of strings.
std::optional<Complaint> read_text_list(const std::string& text, std::vector<std::string>& items);

}  // namespace titan::config
