#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/chat/turns.h"

namespace titan::data {

struct ChatText {
  std::string text;
  std::vector<TextSpan> labels;  // In order: what is to be foretold.
};

// Makes texts of conversations, and says what of them is to be foretold.
class Chat {
 public:
  // With the template of a tokenizer's folder. `train_on_all`: everything is to be foretold, not what the assistant
  // says alone. Errors: those of ChatTemplate::load(); InvalidArgument for a template that does not let the assistant's
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
