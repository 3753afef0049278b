#include "common/io/tokenizer_files/chat_template_text.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace titan::tokenizer_files {
namespace {

using nlohmann::json;

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Takes "default" and "tool_use" from a list of named templates.
void take_named(const json& list, ChatTemplateText& texts, bool& found) {
  for (const json& one : list) {
    const bool right = one.is_object() && one.contains("name") && one.contains("template") && one["name"].is_string() &&
                       one["template"].is_string();
    if (!right) continue;
    if (one["name"] == "default") texts.plain = one["template"].get<std::string>(), found = true;
    if (one["name"] == "tool_use") texts.with_tools = one["template"].get<std::string>();
  }
}

}  // namespace

absl::StatusOr<json> parse_object(const std::string& path, const std::string& text) {
  try {
    json parsed = json::parse(text);
    if (parsed.is_object()) return parsed;
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not valid JSON: ", error.what()));
  }
}

absl::StatusOr<json> read_tokenizer_config(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/tokenizer_config.json");
  const std::optional<std::string> text = read_text(path);
  return text ? parse_object(path, *text) : json::object();
}

absl::StatusOr<ChatTemplateText> find_chat_template(const std::string& folder, const json& config) {
  ChatTemplateText texts{.path = absl::StrCat(folder, "/chat_template.jinja")};
  if (std::optional<std::string> text = read_text(texts.path)) {
    texts.plain = *std::move(text);
    return texts;
  }
  const std::string outer_path =
      std::exchange(texts.path, absl::StrCat(folder, "/tokenizer_config.json: chat_template"));
  const auto found = config.find("chat_template");
  bool there = found != config.end() && found->is_string();
  if (there) texts.plain = found->get<std::string>();
  if (found != config.end() && found->is_array()) take_named(*found, texts, there);
  if (there) return texts;
  return absl::NotFoundError(
      absl::StrCat(folder, ": the tokenizer has no chat template, which converts messages to text: put one into ",
                   outer_path, ", or set model.hf_assets_path to the folder of a chat model's tokenizer"));
}

}  // namespace titan::tokenizer_files
