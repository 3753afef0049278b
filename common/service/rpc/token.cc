#include "common/service/rpc/token.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace titan::rpc {

bool is_token_id(absl::string_view id) {
  return id.size() >= 8 && id.size() <= 32 &&
         std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); });
}

std::string to_text(const TokenText& token) { return absl::StrCat(kTokenPrefix, token.id, "_", token.secret); }

TokenText parse_token(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kTokenPrefix)) return {};
  const size_t end = text.find('_');
  if (end == absl::string_view::npos || !is_token_id(text.substr(0, end)) || text.size() == end + 1) return {};
  return {std::string(text.substr(0, end)), std::string(text.substr(end + 1))};
}

}  // namespace titan::rpc
