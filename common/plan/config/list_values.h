#pragma once

// Reads the keys that hold lists (of texts, of integers, or of tables such as [[optimizer.param_groups]]) from files
// and command lines, and writes lists of tables back as JSON.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assign.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/job_config.h"
#include "common/plan/config/raw.h"
#include "nlohmann/json_fwd.hpp"

namespace titan::config {

// A key that holds a list of tables, such as [[optimizer.param_groups]]: its tables and their members, from what files
// and command lines hold, and back.

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

// [[optimizer.param_groups]] as a value: from what files and command lines hold, and back.

// A list of tables, or the text of one in JSON as on the command line. Reads torchtitan's spelling too: optimizer_name,
// and optimizer_kwargs with betas and adjust_lr_fn. Says what is wrong, and in which group.
std::optional<Complaint> read_group_list(const Raw& raw, std::vector<ParamGroup>& groups);

// Members that are not set are left out.
nlohmann::json group_list_json(const std::vector<ParamGroup>& groups);

// What the key takes, for messages and help.
std::string group_list_form();

// [[training.dataloader.sources]] as a value: from what files and command lines hold, and back.

// A list of tables, or the text of one in JSON as on the command line. Says what is wrong, and in which source.
std::optional<Complaint> read_source_list(const Raw& raw, std::vector<DataSource>& sources);

// Members that are not set are left out.
nlohmann::json source_list_json(const std::vector<DataSource>& sources);

// What the key takes, for messages and help.
std::string source_list_form();

// The items of a list of integers, which also comes as one text, as on the command line: "4,8,12" or "[4, 8, 12]".
// Nothing for what is not a list.
std::optional<std::vector<Raw>> integers_of(const Raw& raw);

// A list of strings that came as one text, as on the command line: a JSON array ('["a, b", "c"]') when it stands in
// brackets, else its items between commas. Complains of brackets around what is not a JSON array of strings.
std::optional<Complaint> read_text_list(const std::string& text, std::vector<std::string>& items);

}  // namespace titan::config
