#include "common/io/data_files/conversation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json/value.h"
#include "common/base/status/status.h"
#include "common/io/data_files/json_row.h"
#include "nlohmann/json.hpp"

namespace titan::data_files {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kOwnNames[] = {"messages", "tools", "documents", "add_generation_prompt"};

absl::Status malformed(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status add_message(const ordered_json& message, Conversation& conversation) {
  const std::string name = absl::StrCat("message ", conversation.messages.size() + 1);
  if (!message.is_object()) return malformed(absl::StrCat(name, " is not a JSON object"));
  const auto role = message.find("role");
  if (role == message.end() && message.contains("from")) {
    return malformed(absl::StrCat(
        name, " has \"from\" (ShareGPT's form): write \"role\" (user, assistant) and \"content\" instead"));
  }
  if (role == message.end() || !role->is_string())
    return malformed(absl::StrCat(name, " has no \"role\" that is a text"));
  TITAN_ASSIGN_OR_RETURN(jinja::Value value, jinja::from_json(message));
  conversation.messages.push_back(std::move(value));
  conversation.roles.push_back(role->get<std::string>());
  return absl::OkStatus();
}

// A value that is there as it is, or as a text of JSON, as datasets have it whose rows are of one type. Taken out of
// the row: a copy goes as deep as the value, which may be deeper than the stack.
absl::StatusOr<ordered_json> take_value(ordered_json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end()) return ordered_json();
  if (!found->is_string()) return std::move(*found);
  if (found->get_ref<const std::string&>().empty()) return ordered_json();
  std::optional<ordered_json> inner = json::parse(found->get_ref<const std::string&>());
  if (!inner) return malformed(absl::StrCat("\"", key, "\": not JSON"));
  return *std::move(inner);
}

absl::Status add_tools(ordered_json& row, Conversation& conversation) {
  TITAN_ASSIGN_OR_RETURN(const ordered_json tools, take_value(row, "tools"));
  if (tools.is_null()) return absl::OkStatus();
  const bool right = tools.is_array() &&
                     std::all_of(tools.begin(), tools.end(), [](const ordered_json& tool) { return tool.is_object(); });
  if (!right) return malformed("\"tools\" is not a list of JSON objects");
  TITAN_ASSIGN_OR_RETURN(conversation.tools, jinja::from_json(tools));
  return absl::OkStatus();
}

absl::Status add_variables(ordered_json& row, Conversation& conversation) {
  constexpr char kKey[] = "chat_template_kwargs";
  TITAN_ASSIGN_OR_RETURN(const ordered_json variables, take_value(row, kKey));
  if (variables.is_null()) return absl::OkStatus();
  if (!variables.is_object()) return malformed(absl::StrCat("\"", kKey, "\" is not a JSON object"));
  for (const auto& [name, item] : variables.items()) {
    if (std::find(std::begin(kOwnNames), std::end(kOwnNames), name) != std::end(kOwnNames)) {
      return malformed(absl::StrCat("\"", kKey, "\" cannot hold \"", name, "\""));
    }
    TITAN_ASSIGN_OR_RETURN(jinja::Value value, jinja::from_json(item));
    conversation.variables.set(name, std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Conversation> parse_conversation(std::string_view line, const std::string& messages_key) {
  line = without_mark(line);
  if (std::string problem = json_problem(line); !problem.empty()) return malformed(problem);
  ordered_json row = json::parse(line).value_or(ordered_json::object());
  const auto messages = row.find(messages_key);
  if (messages == row.end())
    return malformed(absl::StrCat("no \"", messages_key, "\"", keys_hint(line, "dataloader.messages_key")));
  if (!messages->is_array() || messages->empty()) {
    return malformed(absl::StrCat("\"", messages_key, "\" is not a list of messages"));
  }
  Conversation conversation;
  for (const ordered_json& message : *messages) TITAN_RETURN_IF_ERROR(add_message(message, conversation));
  TITAN_RETURN_IF_ERROR(add_tools(row, conversation));
  TITAN_RETURN_IF_ERROR(add_variables(row, conversation));
  return conversation;
}

absl::Status check_answered(const Conversation& conversation) {
  const std::vector<std::string>& roles = conversation.roles;
  if (std::find(roles.begin(), roles.end(), "assistant") != roles.end()) return absl::OkStatus();
  return malformed(
      "no message has the role \"assistant\": there is nothing to learn (dataloader.train_on = \"all\" "
      "learns all messages)");
}

}  // namespace titan::data_files
