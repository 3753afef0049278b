#include "worker/rank/tools/generate/text.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/foreign_files.h"
#include "common/io/data_files/json_row.h"

namespace titan::tools {
namespace {

// Returns the number of bytes of `text` before an incomplete character at its end.
size_t whole_characters(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // A continuation byte.
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

// Returns whether a line is a JSON object, as opposed to text that begins with a brace.
bool is_object(std::string_view line) {
  if (!line.starts_with('{')) return false;
  const size_t next = line.find_first_not_of(" \t", 1);
  return next != std::string_view::npos && (line[next] == '"' || line[next] == '}');
}

absl::StatusOr<std::string> prompt_of(std::string_view line, const std::string& place) {
  if (!is_object(line)) return std::string(line);
  data_files::RowText prompt = data_files::text_of_row(line, "prompt", /*naming_key=*/"");
  if (prompt.problem.empty()) return std::move(prompt.text);
  return absl::InvalidArgumentError(absl::StrCat(
      place, ": ", prompt.problem,
      "; a line that begins with {\" is a JSON object with a string \"prompt\", every other line is a prompt"));
}

// Returns why a file with this beginning holds no prompts, or an empty string if it may be text.
std::string foreign_start(std::string_view line) {
  if (line.starts_with("\x1F\x8B"))
    return "compressed by gzip (`gunzip` decompresses it: prompts are read as they are)";
  if (line.starts_with("\x28\xB5\x2F\xFD")) {
    return "compressed by zstd (`unzstd` decompresses it: prompts are read as they are)";
  }
  return data_files::foreign_bytes(line);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> read_prompts(std::istream& in, const std::string& name) {
  std::vector<std::string> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    std::string_view words = line;
    if (const std::string foreign = number == 1 ? foreign_start(words) : ""; !foreign.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": is not text in UTF-8 but ", foreign));
    }
    if (words.ends_with('\r')) words.remove_suffix(1);
    if (number == 1) words = data_files::without_mark(words);
    if (words.empty()) continue;
    absl::StatusOr<std::string> prompt = prompt_of(words, absl::StrCat(name, ":", number));
    if (!prompt.ok()) return prompt.status();
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

std::string TextStreamer::add(int64_t token) {
  tokens_.push_back(static_cast<int32_t>(token));
  const std::string all = tokenizer_.decode(tokens_);
  const size_t whole = whole_characters(all);
  if (whole <= shown_) return "";
  const size_t from = std::exchange(shown_, whole);
  return text::valid_utf8(all.substr(from, whole - from));
}

std::string TextStreamer::rest() {
  const std::string all = tokenizer_.decode(tokens_);
  if (all.size() <= shown_) return "";
  return text::valid_utf8(all.substr(std::exchange(shown_, all.size())));
}

}  // namespace titan::tools
