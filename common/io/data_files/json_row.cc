#include "common/io/data_files/json_row.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json/reader.h"
#include "common/base/json/value.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/foreign_files.h"
#include "nlohmann/json.hpp"

namespace titan::data_files {
namespace {

using json::Event;

constexpr std::string_view kMark = "\xEF\xBB\xBF";
constexpr size_t kMaxKeys = 6, kMaxKeyLength = 40;

std::string not_a_whole_value(const json::Reader& reader) {
  switch (reader.open_bracket()) {
    case '{':
      return "not JSON: the line ends inside an object, and a row is an object on one line (`jq -c . FILE` writes such "
             "lines)";
    case '[':
      return "not JSON: the line ends inside an array, and a row is an object on one line (`jq -c '.[]' FILE` writes "
             "such lines from an array)";
    default:
      return "not JSON: the line ends early";
  }
}

std::string not_an_object(Event first) {
  if (first != Event::kBeginArray) return "not a JSON object";
  return "not a JSON object but an array, and a row is an object on one line (`jq -c '.[]' FILE` writes such lines "
         "from an array)";
}

std::string error_text(const json::Reader& reader) {
  if (reader.ends_early()) return not_a_whole_value(reader);
  return "not JSON";
}

bool named(const json::Reader& reader, std::string_view key) {
  if (!reader.has_escapes()) return reader.token() == key;
  std::string name;
  json::unescape(reader.token(), name);
  return name == key;
}

// The value of a key at the top level of a row, if there is one.
struct Found {
  bool is_there = false;
  Event event = Event::kNull;
  std::string_view token;
  bool has_escapes = false;
  std::string problem;
};

Found find(std::string_view row, std::string_view key) {
  json::Reader reader(row);
  Found found;
  const Event first = reader.next();
  bool next_is_value = false;
  for (Event event = first; event != Event::kEnd; event = reader.next()) {
    if (event == Event::kError) {
      found.problem = error_text(reader);
      return found;
    }
    if (next_is_value) found = {true, event, reader.token(), reader.has_escapes(), ""};
    next_is_value = event == Event::kKey && reader.depth() == 1 && named(reader, key);
  }
  if (first != Event::kBeginObject) found.problem = not_an_object(first);
  return found;
}

Found checked(std::string_view row, std::string_view key) {
  Found found = text::is_utf8(row) ? find(row, key) : Found{.problem = "not JSON in UTF-8"};
  if (found.problem.empty()) return found;
  if (const std::string foreign = foreign_bytes(row); !foreign.empty()) {
    found.problem = absl::StrCat("not JSON but ", foreign);
  }
  return found;
}

std::vector<std::string> keys_of(std::string_view row) {
  std::vector<std::string> keys;
  json::Reader reader(row);
  for (Event event = reader.next(); event != Event::kEnd && event != Event::kError; event = reader.next()) {
    if (event != Event::kKey || reader.depth() != 1) continue;
    std::string key;
    json::unescape(reader.token(), key);
    keys.push_back(std::move(key));
  }
  return keys;
}

// Explains how to rewrite rows of a known form, recognized by their keys.
std::string known_form(const std::vector<std::string>& keys) {
  constexpr char kWrite[] = "write \"messages\" with \"role\" and \"content\", and set dataloader.messages_key)";
  const auto has = [&](const char* key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (has("messages")) return " (there are \"messages\": a job reads them with dataloader.messages_key = \"messages\")";
  if (has("conversations")) return absl::StrCat(" (there are \"conversations\", ShareGPT's form: ", kWrite);
  if (has("instruction") && has("output")) {
    return absl::StrCat(" (there are \"instruction\" and \"output\", Alpaca's form: ", kWrite);
  }
  const bool answered = has("prompt") && (has("completion") || has("response"));
  return answered ? absl::StrCat(" (there is a \"prompt\" with its answer: ", kWrite) : "";
}

}  // namespace

std::string keys_hint(std::string_view row, std::string_view naming_key) {
  std::vector<std::string> keys = keys_of(row);
  if (keys.empty()) return "";
  if (std::string form = naming_key.empty() ? "" : known_form(keys); !form.empty()) return form;
  const bool more = keys.size() > kMaxKeys;
  keys.resize(std::min(keys.size(), kMaxKeys));
  for (std::string& key : keys) key = absl::StrCat("\"", text::printable(text::shortened(key, kMaxKeyLength)), "\"");
  return absl::StrCat(" (its keys: ", absl::StrJoin(keys, ", "), more ? ", ..." : "",
                      naming_key.empty() ? ")" : absl::StrCat("; ", std::string(naming_key), " selects one)"));
}

bool opens_array(std::string_view row) {
  json::Reader reader(without_mark(row));
  Event event = reader.next();
  if (event != Event::kBeginArray) return false;
  while (event != Event::kEnd && event != Event::kError) event = reader.next();
  return event == Event::kEnd || reader.ends_early();
}

std::string_view without_mark(std::string_view row) {
  if (row.starts_with(kMark)) row.remove_prefix(kMark.size());
  return row;
}

RowText text_of_row(std::string_view row, const std::string& key, std::string_view naming_key) {
  row = without_mark(row);
  const Found found = checked(row, key);
  if (!found.problem.empty()) return {"", found.problem};
  if (!found.is_there) return {"", absl::StrCat("no \"", key, "\"", keys_hint(row, naming_key))};
  if (found.event != Event::kString) return {"", absl::StrCat("\"", key, "\" is not a string")};
  if (!found.has_escapes) return {std::string(found.token), ""};
  RowText text;
  if (json::unescape(found.token, text.text)) return text;
  return {"", absl::StrCat("\"", key, "\" has half of a surrogate pair, which is not valid in UTF-8")};
}

std::string json_problem(std::string_view row) { return checked(without_mark(row), "").problem; }

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
    return malformed(absl::StrCat(name, " has no \"role\" that is a string"));
  TITAN_ASSIGN_OR_RETURN(jinja::Value value, jinja::from_json(message));
  conversation.messages.push_back(std::move(value));
  conversation.roles.push_back(role->get<std::string>());
  return absl::OkStatus();
}

// Takes a value out of the row; null when it is missing. It may be stored as a string of JSON, as in datasets with rows
// of one type. Moves the value, because a copy would recurse as deep as the value, possibly beyond the stack.
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
      "trains on all messages)");
}

}  // namespace titan::data_files
