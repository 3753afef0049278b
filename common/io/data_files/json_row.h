#pragma once

// Reads a row of JSON lines: the text under one key, or a conversation with its messages and tools.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/value.h"

namespace titan::data_files {

// A row's text, or why it has none.
struct RowText {
  std::string text;
  std::string problem;
};

// The string `key` of a row of JSON, {"text": "..."}. Nothing else of the row is kept, and of two such keys the last
// counts. The first row of a file may begin with a byte order mark.
RowText text_of_row(std::string_view row, const std::string& key, std::string_view naming_key = "dataloader.text_key");

// Why `row` is not a JSON object, for people; nothing when it is one. What is left over where a file that is no JSON
// lines was cut into lines is named as what it is: an array, an object over several lines, another encoding.
std::string json_problem(std::string_view row);

// Whether a row is a JSON array, or the beginning of one.
bool opens_array(std::string_view row);

// What the keys of a row that lacks the wanted one say, as the end of a sentence: which form it has and how to write it
// instead, or else which keys there are, of which the configuration key `naming_key` names one; "": no key does.
std::string keys_hint(std::string_view row, std::string_view naming_key);

// The row without the byte order mark of UTF-8.
std::string_view without_mark(std::string_view row);

// A row of a dataset of conversations.
struct Conversation {
  std::vector<jinja::Value> messages;  // Mappings, each with a "role".
  std::vector<std::string> roles;      // Of these.
  jinja::Value tools = jinja::None();
  jinja::Mapping variables;  // More names for the template ("chat_template_kwargs").

  bool has_tools() const { return !jinja::is_none(tools); }
};

// Of a line of JSON, {"messages": [{"role": "user", "content": ".."}, ..], "tools": [..], "chat_template_kwargs":
// {..}}, where the first key is `messages_key` and the others are not needed. InvalidArgument says what is wrong with
// the line.
absl::StatusOr<Conversation> parse_conversation(std::string_view line, const std::string& messages_key);

// InvalidArgument for a conversation without a message of the assistant, of which nothing would be a label unless all
// is (dataloader.train_on).
absl::Status check_answered(const Conversation& conversation);

}  // namespace titan::data_files
