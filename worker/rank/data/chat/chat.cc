#include "worker/rank/data/chat/chat.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

// A question and an answer, which every template takes.
constexpr char kProbe[] =
    R"({"messages": [{"role": "user", "content": "Question?"}, {"role": "assistant", "content": "Answer."}]})";

}  // namespace

absl::StatusOr<std::shared_ptr<const Chat>> Chat::load(const std::string& tokenizer_folder, std::string messages_key,
                                                       bool train_on_all) {
  TITAN_ASSIGN_OR_RETURN(ChatTemplate found, ChatTemplate::load(tokenizer_folder));
  Chat chat(std::move(found), std::move(messages_key), train_on_all);
  TITAN_ASSIGN_OR_RETURN(const data_files::Conversation probe, data_files::parse_conversation(kProbe, "messages"));
  const absl::StatusOr<ChatText> text = chat.text_of(probe);
  if (!text.ok()) return annotate(text.status(), absl::StrCat("a question and an answer by ", chat.template_.path()));
  return std::make_shared<const Chat>(std::move(chat));
}

absl::StatusOr<ChatText> Chat::text_of(std::string_view line) const {
  TITAN_ASSIGN_OR_RETURN(const data_files::Conversation conversation,
                         data_files::parse_conversation(line, messages_key_));
  return text_of(conversation);
}

absl::StatusOr<ChatText> Chat::text_of(const data_files::Conversation& conversation) const {
  if (!train_on_all_) TITAN_RETURN_IF_ERROR(data_files::check_answered(conversation));
  TITAN_ASSIGN_OR_RETURN(jinja::Rendered rendered,
                         template_.render(conversation, conversation.messages.size(), /*generation_prompt=*/false));
  ChatText chat{.text = std::move(rendered.text)};
  if (train_on_all_) {
    chat.labels = {{0, chat.text.size()}};
  } else if (template_.has_generations(conversation)) {
    chat.labels = std::move(rendered.generations);
  } else {
    TITAN_ASSIGN_OR_RETURN(chat.labels, assistant_turns(template_, conversation, chat.text));
  }
  return chat;
}

}  // namespace titan::data
