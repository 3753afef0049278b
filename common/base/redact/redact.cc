#include "common/base/redact/redact.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::redact {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kWords[] = {"token",      "secret",     "key",           "password", "passwd",
                                        "passphrase", "credential", "authorization", "cookie"};

bool is_lower(char c) { return absl::ascii_islower(static_cast<unsigned char>(c)); }
bool is_upper(char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); }
bool is_part(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); }

// Returns the words in lower case: hf_token, HF-TOKEN and hfToken give the same two.
std::vector<std::string> words_of(absl::string_view name) {
  std::vector<std::string> words(1);
  for (size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && is_upper(name[i]) && is_lower(name[i - 1]);
    if ((!is_part(name[i]) || begins) && !words.back().empty()) words.emplace_back();
    if (is_part(name[i])) words.back().push_back(absl::ascii_tolower(static_cast<unsigned char>(name[i])));
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

bool is_secret_word(absl::string_view word) {
  return std::any_of(std::begin(kWords), std::end(kWords), [&](absl::string_view known) {
    return absl::EndsWith(word, known) || absl::EndsWith(word, absl::StrCat(known, "s"));
  });
}

bool ends_in_secret(absl::string_view name) {
  const std::vector<std::string> words = words_of(name);
  // A plural in the name of a number is a count: max_tokens.
  return !words.empty() && is_secret_word(words.back()) && !absl::EndsWith(words.back(), "s");
}

bool is_name(char c) { return is_part(c) || c == '_' || c == '-' || c == '.'; }

// Returns the end of the value that begins at `begin`: after its closing quote, or before a blank, a comma, a
// semicolon, a closing bracket or a quote.
size_t end_of_value(absl::string_view text, size_t begin) {
  if (begin < text.size() && (text[begin] == '"' || text[begin] == '\'')) {
    for (size_t i = begin + 1; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == text[begin]) {
        return i + 1;
      }
    }
    return text.size();
  }
  return std::min(text.find_first_of(" \t\n\r,;)}]\"'", begin), text.size());
}

// Returns where the value begins that follows the name ending at `end`, or npos. A value must be on the same line as
// its '=' or ':'.
size_t value_after(absl::string_view text, size_t end) {
  if (end < text.size() && (text[end] == '"' || text[end] == '\'')) ++end;
  end = text.find_first_not_of(" \t", end);
  if (end == absl::string_view::npos || (text[end] != '=' && text[end] != ':')) return absl::string_view::npos;
  if (absl::StartsWith(text.substr(end), "://")) return absl::string_view::npos;
  const size_t value = text.find_first_not_of(" \t", end + 1);
  return value == absl::string_view::npos || text[value] == '\n' ? absl::string_view::npos : value;
}

// Skips the scheme in "Authorization: Bearer VALUE".
size_t after_scheme(absl::string_view text, size_t value) {
  for (const absl::string_view scheme : {"Bearer ", "Basic "}) {
    if (absl::StartsWithIgnoreCase(text.substr(value), scheme)) return value + scheme.size();
  }
  return value;
}

std::string without_settings(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (!is_name(text[i])) {
      out.push_back(text[i++]);
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_name(text[end])) ++end;
    absl::StrAppend(&out, text.substr(i, end - i));
    const size_t value = is_secret(text.substr(i, end - i)) ? value_after(text, end) : absl::string_view::npos;
    i = end;
    if (value == absl::string_view::npos) continue;
    const size_t from = after_scheme(text, value);
    absl::StrAppend(&out, text.substr(end, from - end), kLeftOut);
    i = end_of_value(text, from);
  }
  return out;
}

// Replaces USER:PASSWORD in scheme://USER:PASSWORD@HOST.
std::string without_passwords(absl::string_view text) {
  std::string out;
  for (size_t at = 0; (at = text.find("://")) != absl::string_view::npos;) {
    absl::StrAppend(&out, text.substr(0, at + 3));
    text.remove_prefix(at + 3);
    const absl::string_view authority = text.substr(0, text.find_first_of("/ \t\n\"'"));
    const size_t host = authority.rfind('@');
    if (host == absl::string_view::npos) continue;
    out.append(kLeftOut);
    text.remove_prefix(host);
  }
  return absl::StrCat(out, text);
}

}  // namespace

bool is_secret(absl::string_view name) {
  const std::vector<std::string> words = words_of(name);
  return std::any_of(words.begin(), words.end(), [](const std::string& word) { return is_secret_word(word); });
}

std::string text(absl::string_view text) { return without_passwords(without_settings(text)); }

void values(ordered_json& document) {
  if (document.is_string()) {
    document = text(document.get<std::string>());
  } else if (document.is_array()) {
    for (ordered_json& member : document) values(member);
  } else if (document.is_object()) {
    for (auto& [name, member] : document.items()) {
      const bool hidden = member.is_number() ? ends_in_secret(name) : is_secret(name);
      if (hidden && !member.is_null() && !member.is_boolean()) {
        member = kLeftOut;
      } else {
        values(member);
      }
    }
  }
}

void texts(ordered_json& document) {
  if (document.is_string()) document = text(document.get<std::string>());
  if (!document.is_structured()) return;
  for (ordered_json& member : document) texts(member);
}

}  // namespace titan::redact
