#include "common/io/tokenizer_files/tiktoken.h"

#include <array>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace titan::tokenizer_files {
namespace {

constexpr size_t kMaxTokenLength = 8000;     // In bytes. Finding its parts takes quadratic time.
constexpr int32_t kMaxRank = (1 << 22) - 1;  // Far beyond any vocabulary; tables are as long as the largest id.

using Token = std::pair<std::string, int32_t>;

std::optional<Token> parse_line(absl::string_view line) {
  const size_t space = line.find(' ');
  Token token;
  if (space == 0 || space == absl::string_view::npos || !absl::Base64Unescape(line.substr(0, space), &token.first) ||
      token.first.empty() || token.first.size() > kMaxTokenLength ||
      !absl::SimpleAtoi(line.substr(space + 1), &token.second)) {
    return std::nullopt;
  }
  return token.second < 0 || token.second > kMaxRank ? std::nullopt : std::optional(token);
}

// Removes the next line from `rest` and returns it without trailing white space.
absl::string_view next_line(absl::string_view& rest) {
  const size_t end = rest.find('\n');
  const absl::string_view line = rest.substr(0, end);
  rest = end == absl::string_view::npos ? absl::string_view() : rest.substr(end + 1);
  return absl::StripTrailingAsciiWhitespace(line);
}

absl::Status check_bytes(const std::vector<Token>& tokens) {
  std::array<bool, 256> there{};
  for (const Token& token : tokens) {
    if (token.first.size() == 1) there[static_cast<unsigned char>(token.first[0])] = true;
  }
  for (size_t byte = 0; byte < there.size(); ++byte) {
    if (there[byte]) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "has no token for the byte 0x%02X, so some texts cannot be tokenized; is the file truncated?", byte));
  }
  return absl::OkStatus();
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  absl::string_view rest(bytes.data(), bytes.size());
  while (!rest.empty()) {
    if (const absl::string_view line = next_line(rest); !line.empty()) return parse_line(line).has_value();
  }
  return false;
}

absl::StatusOr<std::vector<Token>> parse_tiktoken(std::string_view bytes) {
  std::vector<Token> tokens;
  absl::flat_hash_set<std::string> texts;
  absl::flat_hash_set<int32_t> ranks;
  absl::string_view rest(bytes.data(), bytes.size());
  for (int number = 1; !rest.empty(); ++number) {
    const absl::string_view line = next_line(rest);
    if (line.empty()) continue;
    const auto wrong = [&](const char* why) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": \"", absl::CHexEscape(line.substr(0, 60)), "\" ", why));
    };
    std::optional<Token> token = parse_line(line);
    if (!token) return wrong("is not a token in base64 with its rank, such as \"IHRoZQ== 279\"");
    if (!texts.insert(token->first).second) return wrong("is a duplicate token");
    if (!ranks.insert(token->second).second) return wrong("has a duplicate rank");
    tokens.push_back(*std::move(token));
  }
  if (absl::Status status = check_bytes(tokens); !status.ok()) return status;
  return tokens;
}

}  // namespace titan::tokenizer_files
