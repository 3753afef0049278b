#pragma once

// Says how callers identify themselves: the URI in a certificate, and the text of a user's token.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace titan::rpc {

// Who a certificate names, in the one URI "titan:..." among its names.

struct Identity {
  enum class Kind { kController, kNode, kUser, kAdmin };
  Kind kind = Kind::kUser;
  std::string name;  // Empty for controllers, which are alike.
};

std::string to_uri(const Identity& identity);
// Nothing when it is none of them, or there are several.
std::optional<Identity> identity_in(const std::vector<std::string>& uris);

// What a user holds who is let in by a token: one word, of which the controller keeps the digest of the secret alone.

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
