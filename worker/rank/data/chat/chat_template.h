#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/data_files/conversation.h"
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

}  // namespace titan::data
