#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/jinja/value.h"

namespace titan::data_files {

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
