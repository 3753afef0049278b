#include "worker/rank/data/chat/chat_template.h"

#include <utility>

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

// Those that there are: a template asks whether they are defined.
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

}  // namespace titan::data
