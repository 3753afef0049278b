#pragma once

// What a user holds who is let in by a token: one word, of which the controller keeps the digest of the secret alone.

#include <string>

#include "absl/strings/string_view.h"

namespace titan::rpc {

inline constexpr char kTokenPrefix[] = "titan_";

struct TokenText {
  std::string id, secret;
};

// "titan_ID_SECRET".
std::string to_text(const TokenText& token);
// Its parts; both empty when it is none.
TokenText parse_token(absl::string_view text);
// 8 to 32 of a-z and 0-9.
bool is_token_id(absl::string_view id);

}  // namespace titan::rpc
