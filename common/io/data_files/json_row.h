#pragma once

// Reads a row of JSON lines: the text under one key, or a conversation with its messages and tools.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/value.h"

namespace titan::data_files {

// A row's text, or the reason why it has none.
struct RowText {
  std::string text;
  std::string problem;
};

// Returns the string `key` of a JSON row {"text": "..."} and ignores the rest; of duplicate keys, the last is used. The
// row may begin with a byte order mark. `naming_key`: the option that sets `key`, for messages.
RowText text_of_row(std::string_view row, const std::string& key, std::string_view naming_key = "dataloader.text_key");

// Returns why `row` is not a JSON object, for people; "" when it is one. Recognizes rows of files that are not JSON
// lines: an array, an object over several lines, another encoding.
std::string json_problem(std::string_view row);

// Returns whether a row is a JSON array or the beginning of one.
bool opens_array(std::string_view row);

// Describes the keys of a row that lacks the wanted one, as the end of a sentence. Names a known form of the row and
// how to write it instead, or else lists the keys and names the option `naming_key` that selects one. With an empty
// `naming_key`, only lists the keys.
std::string keys_hint(std::string_view row, std::string_view naming_key);

// Returns the row without a UTF-8 byte order mark.
std::string_view without_mark(std::string_view row);

// A row of a dataset of conversations.
struct Conversation {
  std::vector<jinja::Value> messages;  // Mappings, each with a "role".
  std::vector<std::string> roles;      // Roles of the messages, in order.
  jinja::Value tools = jinja::None();
  jinja::Mapping variables;  // Further variables of the template ("chat_template_kwargs").

  bool has_tools() const { return !jinja::is_none(tools); }
};

// Parses a JSON line {"messages": [{"role": "user", "content": ".."}, ..], "tools": [..], "chat_template_kwargs":
// {..}}. `messages_key` replaces "messages"; the other keys are optional. Errors: InvalidArgument with what is wrong in
// the line.
absl::StatusOr<Conversation> parse_conversation(std::string_view line, const std::string& messages_key);

// Returns InvalidArgument for a conversation without an assistant message: it has no labels unless all messages are
// labels (dataloader.train_on).
absl::Status check_answered(const Conversation& conversation);

}  // namespace titan::data_files
