#include "worker/rank/data/chat/turns.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

// Some bytes of a text for people, from about there.
std::string excerpt(const std::string& text, size_t at) {
  size_t begin = std::min(at, text.size());
  while (begin > 0 && begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t end = std::min(begin + 32, text.size());
  while (end > begin && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::Utf8SafeCEscape(text.substr(begin, end - begin));
}

// How long the text up to message `messages` is, in the text of all.
absl::StatusOr<size_t> length_up_to(const ChatTemplate& chat, const data_files::Conversation& conversation,
                                    size_t messages, bool prompt, const std::string& text) {
  TITAN_ASSIGN_OR_RETURN(const jinja::Rendered part, chat.render(conversation, messages, prompt));
  if (text.starts_with(part.text)) return part.text.size();
  const auto differ = std::mismatch(part.text.begin(), part.text.end(), text.begin(), text.end());
  const auto at = static_cast<size_t>(differ.first - part.text.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      chat.path(), ": the text of the first ", messages, " messages", prompt ? " and a prompt" : "",
      " does not begin the text of all ", conversation.messages.size(), ", from byte ", at, " on: \"",
      excerpt(part.text, at), "\" and \"", excerpt(text, at),
      "\"; what the assistant says cannot be told apart: put it into {% generation %} blocks of the template, or set "
      "train_on = \"all\""));
}

}  // namespace

absl::StatusOr<std::vector<TextSpan>> assistant_turns(const ChatTemplate& chat,
                                                      const data_files::Conversation& conversation,
                                                      const std::string& text) {
  std::vector<TextSpan> turns;
  for (size_t i = 0; i < conversation.roles.size(); ++i) {
    if (conversation.roles[i] != "assistant") continue;
    TITAN_ASSIGN_OR_RETURN(const size_t begin, length_up_to(chat, conversation, i, true, text));
    size_t end = text.size();
    if (i + 1 < conversation.roles.size()) {
      TITAN_ASSIGN_OR_RETURN(end, length_up_to(chat, conversation, i + 1, false, text));
    }
    if (end > begin) turns.emplace_back(begin, end);
  }
  return turns;
}

}  // namespace titan::data
