#pragma once

// Turns conversations into text by the chat template of a tokenizer's folder, and says which stretches of that text are
// labels: what the assistant says.

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

// The chat template of a tokenizer's folder: chat_template.jinja, else "chat_template" of tokenizer_config.json, which
// is a text or a list of named ones, of which "tool_use" is taken for conversations with tools and "default" otherwise.
class ChatTemplate {
 public:
  // Errors: NotFound without a template, InvalidArgument for one that is not supported; names file, line and column.
  static absl::StatusOr<ChatTemplate> load(const std::string& tokenizer_folder);

  // What it makes of the first `messages` messages. Errors: those of jinja::Template::render().
  absl::StatusOr<jinja::Rendered> render(const data_files::Conversation& conversation, size_t messages,
                                         bool generation_prompt) const;

  // Whether it says itself what the assistant says.
  bool has_generations(const data_files::Conversation& conversation) const {
    return chosen(conversation).has_generations();
  }
  const std::string& path() const { return path_; }
  // Of the texts, and of what else of the folder they see: another sum, another text of a conversation.
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

  std::string path_;  // Of the file that it is from.
  uint32_t sum_;
  jinja::Template plain_;
  std::optional<jinja::Template> with_tools_;
  jinja::Mapping special_tokens_;  // As templates name them: bos_token and so on.
};

using TextSpan = std::pair<size_t, size_t>;  // Bytes [first, second).

// The stretches of `text`, which the template made of all messages, that the assistant says: for each of its messages
// what follows the prompt for it, up to where the conversation with it ends. InvalidArgument when the conversation up
// to there is not a beginning of the text: then the template has to mark them by generation blocks.
absl::StatusOr<std::vector<TextSpan>> assistant_turns(const ChatTemplate& chat,
                                                      const data_files::Conversation& conversation,
                                                      const std::string& text);

struct ChatText {
  std::string text;
  std::vector<TextSpan> labels;  // In order: what the loss counts.
};

// Makes texts of conversations, and says which stretches of them are labels.
class Chat {
 public:
  // With the template of a tokenizer's folder. `train_on_all`: everything is a label, not only what the assistant
  // says. Errors: those of ChatTemplate::load(); InvalidArgument for a template that does not let the assistant's
  // words be told apart in a conversation of a question and an answer.
  static absl::StatusOr<std::shared_ptr<const Chat>> load(const std::string& tokenizer_folder, std::string messages_key,
                                                          bool train_on_all);

  // Of a row. InvalidArgument: what is wrong with it, or what the template says of it.
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
