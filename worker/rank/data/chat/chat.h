#pragma once

// Renders conversations as text with the chat template of a tokenizer's folder, and returns which spans of that text
// are labels: the assistant's words.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/json_row.h"
#include "common/io/jinja/template.h"

namespace titan::data {

// The chat template of a tokenizer's folder: chat_template.jinja, else "chat_template" of tokenizer_config.json. The
// latter is a text or a list of named texts: "tool_use" serves conversations with tools, "default" all others.
class ChatTemplate {
 public:
  // Errors: NotFound without a template; InvalidArgument (names file, line and column) for one that is not supported.
  static absl::StatusOr<ChatTemplate> load(const std::string& tokenizer_folder);

  // Renders the first `messages` messages. Errors: those of jinja::Template::render().
  absl::StatusOr<jinja::Rendered> render(const data_files::Conversation& conversation, size_t messages,
                                         bool generation_prompt) const;

  // Returns whether the template itself marks the assistant's words ({% generation %} blocks).
  bool has_generations(const data_files::Conversation& conversation) const {
    return chosen(conversation).has_generations();
  }
  const std::string& path() const { return path_; }
  // CRC-32C of the templates and of the special tokens that they see. It changes whenever a conversation's text can
  // change.
  uint32_t sum() const { return sum_; }

 private:
  ChatTemplate(std::string path, uint32_t sum, jinja::Template plain, std::optional<jinja::Template> with_tools,
               jinja::Mapping special_tokens)
      : path_(std::move(path)),
        sum_(sum),
        plain_(std::move(plain)),
        with_tools_(std::move(with_tools)),
        special_tokens_(std::move(special_tokens)) {}
  const jinja::Template& chosen(const data_files::Conversation& conversation) const {
    return conversation.has_tools() && with_tools_ ? *with_tools_ : plain_;
  }

  std::string path_;  // File that holds the template.
  uint32_t sum_;
  jinja::Template plain_;
  std::optional<jinja::Template> with_tools_;
  jinja::Mapping special_tokens_;  // Keyed by the names that templates use: bos_token and so on.
};

using TextSpan = std::pair<size_t, size_t>;  // Bytes [first, second).

// Returns the spans of `text` (the rendering of all messages) that the assistant says. For each of its messages a span
// starts after the generation prompt and ends where the conversation up to this message ends. InvalidArgument if the
// first messages alone do not render to a prefix of `text`: the template then has to mark the spans itself
// (has_generations).
absl::StatusOr<std::vector<TextSpan>> assistant_turns(const ChatTemplate& chat,
                                                      const data_files::Conversation& conversation,
                                                      const std::string& text);

struct ChatText {
  std::string text;
  std::vector<TextSpan> labels;  // The spans that count for the loss, in order.
};

// Renders conversations and returns which spans of the text are labels.
class Chat {
 public:
  // Uses the template of a tokenizer's folder. With `train_on_all` the whole text is a label, not only the assistant's
  // words. Errors: those of ChatTemplate::load(); InvalidArgument when the template cannot render one question and one
  // answer, or the assistant's words cannot be separated in it.
  static absl::StatusOr<std::shared_ptr<const Chat>> load(const std::string& tokenizer_folder, std::string messages_key,
                                                          bool train_on_all);

  // Renders one row of a dataset, a JSON object. InvalidArgument for a malformed row, or one that the template rejects.
  absl::StatusOr<ChatText> text_of(std::string_view line) const;

  const std::string& messages_key() const { return messages_key_; }
  uint32_t template_sum() const { return template_.sum(); }

 private:
  Chat(ChatTemplate chat, std::string messages_key, bool train_on_all)
      : template_(std::move(chat)), messages_key_(std::move(messages_key)), train_on_all_(train_on_all) {}
  absl::StatusOr<ChatText> text_of(const data_files::Conversation& conversation) const;

  ChatTemplate template_;
  std::string messages_key_;
  bool train_on_all_;
};

}  // namespace titan::data
