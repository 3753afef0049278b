#include "worker/rank/data/chat/chat.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "nlohmann/json.hpp"

namespace titan::data {
namespace {

using nlohmann::json;

constexpr char kSpecialTokens[][12] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

std::string content_of(const json& token) {
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token["content"].is_string()
             ? token["content"].get<std::string>()
             : "";
}

// Returns only the tokens that the config defines, because templates test whether a name is defined.
jinja::Mapping special_tokens(const json& config) {
  jinja::Mapping tokens;
  for (const char* name : kSpecialTokens) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (std::string text = content_of(*found); !text.empty()) tokens.set(std::string(name), std::move(text));
  }
  const auto more = config.find("additional_special_tokens");
  if (more == config.end() || !more->is_array() || more->empty()) return tokens;
  std::vector<jinja::Value> texts;
  for (const json& token : *more) texts.emplace_back(content_of(token));
  tokens.set(std::string("additional_special_tokens"), jinja::list(std::move(texts)));
  return tokens;
}

uint32_t sum_of(const tokenizer_files::ChatTemplateText& texts, const json& config) {
  json all = {texts.plain, texts.with_tools.value_or("")};
  for (const char* name : kSpecialTokens) all.push_back(config.contains(name) ? content_of(config[name]) : "");
  all.push_back(config.value("additional_special_tokens", json()));
  const std::string text = all.dump(-1, ' ', false, json::error_handler_t::replace);
  return storage::crc32c(text.data(), text.size());
}

absl::StatusOr<jinja::Template> parsed(const std::string& path, const std::string& text) {
  absl::StatusOr<jinja::Template> made = jinja::Template::parse(text);
  if (!made.ok()) return annotate(made.status(), path);
  return made;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::load(const std::string& tokenizer_folder) {
  TITAN_ASSIGN_OR_RETURN(const json config, tokenizer_files::read_tokenizer_config(tokenizer_folder));
  TITAN_ASSIGN_OR_RETURN(const tokenizer_files::ChatTemplateText texts,
                         tokenizer_files::find_chat_template(tokenizer_folder, config));
  TITAN_ASSIGN_OR_RETURN(jinja::Template plain, parsed(texts.path, texts.plain));
  std::optional<jinja::Template> with_tools;
  if (texts.with_tools) {
    TITAN_ASSIGN_OR_RETURN(with_tools, parsed(texts.path, *texts.with_tools));
  }
  return ChatTemplate(texts.path, sum_of(texts, config), std::move(plain), std::move(with_tools),
                      special_tokens(config));
}

absl::StatusOr<jinja::Rendered> ChatTemplate::render(const data_files::Conversation& conversation, size_t messages,
                                                     bool generation_prompt) const {
  jinja::Mapping variables = special_tokens_;
  for (const auto& [name, value] : conversation.variables.entries) variables.set(name, value);
  const auto end = conversation.messages.begin() + static_cast<std::ptrdiff_t>(messages);
  variables.set(std::string("messages"), jinja::list({conversation.messages.begin(), end}));
  variables.set(std::string("tools"), conversation.tools);
  variables.set(std::string("documents"), jinja::None());
  variables.set(std::string("add_generation_prompt"), generation_prompt);
  return chosen(conversation).render(variables);
}

namespace {

// Returns up to 32 bytes of `text` from about `at`, cut between characters and escaped, for error messages.
std::string excerpt(const std::string& text, size_t at) {
  size_t begin = std::min(at, text.size());
  while (begin > 0 && begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t end = std::min(begin + 32, text.size());
  while (end > begin && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::Utf8SafeCEscape(text.substr(begin, end - begin));
}

// Returns how many bytes of `text` the first `messages` messages render to. InvalidArgument if `text` does not begin
// with their text.
absl::StatusOr<size_t> length_up_to(const ChatTemplate& chat, const data_files::Conversation& conversation,
                                    size_t messages, bool prompt, const std::string& text) {
  TITAN_ASSIGN_OR_RETURN(const jinja::Rendered part, chat.render(conversation, messages, prompt));
  if (text.starts_with(part.text)) return part.text.size();
  const auto differ = std::mismatch(part.text.begin(), part.text.end(), text.begin(), text.end());
  const auto at = static_cast<size_t>(differ.first - part.text.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      chat.path(), ": the text of the first ", messages, " messages", prompt ? " and a prompt" : "",
      " does not begin the text of all ", conversation.messages.size(), "; they differ at byte ", at, ": \"",
      excerpt(part.text, at), "\" and \"", excerpt(text, at),
      "\"; the assistant's words cannot be separated: put them into {% generation %} blocks of the template, or set "
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

namespace {

// Every template accepts a question and an answer.
constexpr char kProbe[] =
    R"({"messages": [{"role": "user", "content": "Question?"}, {"role": "assistant", "content": "Answer."}]})";

}  // namespace

absl::StatusOr<std::shared_ptr<const Chat>> Chat::load(const std::string& tokenizer_folder, std::string messages_key,
                                                       bool train_on_all) {
  TITAN_ASSIGN_OR_RETURN(ChatTemplate found, ChatTemplate::load(tokenizer_folder));
  Chat chat(std::move(found), std::move(messages_key), train_on_all);
  TITAN_ASSIGN_OR_RETURN(const data_files::Conversation probe, data_files::parse_conversation(kProbe, "messages"));
  const absl::StatusOr<ChatText> text = chat.text_of(probe);
  if (!text.ok()) return annotate(text.status(), absl::StrCat("rendering a conversation by ", chat.template_.path()));
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
