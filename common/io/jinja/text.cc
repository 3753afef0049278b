#include "common/io/jinja/text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "common/base/status/status.h"

namespace titan::jinja {
namespace {

bool continues(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// Returns where the character before `end` begins.
size_t before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && continues(text, at)) --at;
  return character_at(text, at).bytes == end - at ? at : end - 1;
}

bool is_line_end(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const uint32_t first = byte(0);
  const size_t bytes = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < bytes; ++i) {
    if (!continues(text, at + i)) return {first, 1};
  }
  if (bytes == 1) return {first, 1};
  uint32_t code = first & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, bytes};
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_at(text, at).bytes;
    all.emplace_back(text.substr(at, bytes));
    at += bytes;
  }
  return all;
}

int64_t length(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) ++count;
  return count;
}

bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

std::string strip(std::string_view text, const std::optional<std::string>& set, bool left, bool right) {
  const std::vector<std::string> wanted = set ? characters(*set) : std::vector<std::string>();
  const auto goes = [&](size_t at, size_t bytes) {
    if (!set) return is_space(character_at(text, at).code);
    return std::find(wanted.begin(), wanted.end(), text.substr(at, bytes)) != wanted.end();
  };
  while (left && !text.empty()) {
    const size_t bytes = character_at(text, 0).bytes;
    if (!goes(0, bytes)) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    const size_t at = before(text, text.size());
    if (!goes(at, text.size() - at)) break;
    text.remove_suffix(text.size() - at);
  }
  return std::string(text);
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const size_t end = at;
    at += c.bytes;
    if (!is_line_end(c.code)) continue;
    if (c.code == '\r' && text.substr(at, 1) == "\n") ++at;
    lines.emplace_back(text.substr(begin, end - begin));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

namespace {

std::vector<std::string> split_words(std::string_view text, int64_t most) {
  std::vector<std::string> words;
  size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < text.size() && is_space(character_at(text, at).code) == space) at += character_at(text, at).bytes;
  };
  for (skip(true); at < text.size(); skip(true)) {
    if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
      words.push_back(strip(text.substr(at), std::nullopt, false, false));
      break;
    }
    const size_t begin = at;
    skip(false);
    words.emplace_back(text.substr(begin, at - begin));
  }
  return words;
}

std::vector<std::string> split_words_from_the_right(std::string_view text, int64_t most) {
  std::vector<std::string> words;
  size_t end = text.size();
  const auto skip = [&](bool space) {
    while (end > 0 && is_space(character_at(text, before(text, end)).code) == space) end = before(text, end);
  };
  for (skip(true); end > 0; skip(true)) {
    if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
      words.emplace_back(text.substr(0, end));
      break;
    }
    const size_t word_end = end;
    skip(false);
    words.emplace_back(text.substr(end, word_end - end));
  }
  std::reverse(words.begin(), words.end());
  return words;
}

}  // namespace

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, int64_t most) {
  if (!separator) return split_words(text, most);
  std::vector<std::string> parts;
  for (size_t found; (most < 0 || static_cast<int64_t>(parts.size()) < most) &&
                     (found = text.find(*separator)) != std::string_view::npos;) {
    parts.emplace_back(text.substr(0, found));
    text.remove_prefix(found + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> split_from_the_right(std::string_view text, const std::optional<std::string>& separator,
                                              int64_t most) {
  if (!separator) return split_words_from_the_right(text, most);
  std::vector<std::string> parts;
  for (size_t found; (most < 0 || static_cast<int64_t>(parts.size()) < most) &&
                     (found = text.rfind(*separator)) != std::string_view::npos;) {
    parts.emplace_back(text.substr(found + separator->size()));
    text = text.substr(0, found);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most) {
  std::string out;
  int64_t done = 0;
  if (old.empty()) {  // Inserts before each character and at the end.
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = character_at(text, at).bytes;
      if (most < 0 || done < most) out += with;
      ++done;
      out += text.substr(at, bytes);
      at += bytes;
    }
    if (most < 0 || done < most) out += with;
    return out;
  }
  for (size_t found; (most < 0 || done < most) && (found = text.find(old)) != std::string_view::npos; ++done) {
    out += text.substr(0, found);
    out += with;
    text.remove_prefix(found + old.size());
  }
  return out += text;
}

absl::StatusOr<std::string> replaced_text(Run& run, std::string_view text, std::string_view old, std::string_view with,
                                          int64_t most) {
  int64_t times = old.empty() ? length(text) + 1 : 0;
  for (size_t at = 0; !old.empty() && (at = text.find(old, at)) != std::string_view::npos; at += old.size()) ++times;
  if (most >= 0) times = std::min(times, most);
  const auto size = static_cast<int64_t>(text.size());
  TITAN_RETURN_IF_ERROR(run.check_bytes(size));
  TITAN_RETURN_IF_ERROR(run.check_bytes(size + times * static_cast<int64_t>(with.size())));
  return replace(text, old, with, most);
}

absl::StatusOr<std::string> with_case(std::string_view text, Case wanted) {
  std::string out(text);
  bool first = true, inside = false;
  for (char& c : out) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      return absl::InvalidArgumentError(
          "upper and lower case of text beyond ASCII is not supported; leave it out of the template");
    }
    const bool up =
        wanted == Case::kUpper || (wanted == Case::kCapitalized && first) || (wanted == Case::kTitle && !inside);
    inside = absl::ascii_isalpha(c);
    c = up ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    first = false;
  }
  return out;
}

}  // namespace titan::jinja
