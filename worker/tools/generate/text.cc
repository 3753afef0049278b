#include "worker/tools/generate/text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/text/utf8.h"
#include "nlohmann/json.hpp"

namespace titan::tools {
namespace {

// Bytes of `text` in front of a character that has begun at its end and is not whole.
size_t whole_characters(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // Goes on with one.
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

absl::StatusOr<std::string> prompt_of(const std::string& line, const std::string& place) {
  if (line.front() != '{') return line;
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return line;  // A text that begins with a brace.
  const auto prompt = object.find("prompt");
  if (prompt == object.end() || !prompt->is_string())
    return absl::InvalidArgumentError(absl::StrCat(place, ": a JSON object without a text \"prompt\""));
  return prompt->get<std::string>();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> read_prompts(std::istream& in, const std::string& name) {
  std::vector<std::string> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    line = std::string(absl::StripSuffix(line, "\r"));
    if (line.empty()) continue;
    absl::StatusOr<std::string> prompt = prompt_of(line, absl::StrCat(name, ":", number));
    if (!prompt.ok()) return prompt.status();
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

std::string GrowingText::add(int64_t token) {
  tokens_.push_back(static_cast<int32_t>(token));
  const std::string all = tokenizer_.decode(tokens_);
  const size_t whole = whole_characters(all);
  if (whole <= shown_) return "";
  const size_t from = std::exchange(shown_, whole);
  return text::valid_utf8(all.substr(from, whole - from));
}

std::string GrowingText::rest() {
  const std::string all = tokenizer_.decode(tokens_);
  if (all.size() <= shown_) return "";
  return text::valid_utf8(all.substr(std::exchange(shown_, all.size())));
}

}  // namespace titan::tools
