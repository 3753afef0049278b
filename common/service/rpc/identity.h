#pragma once

// Defines how callers identify themselves: by a URI in a certificate, or by the text of a user's token.

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

inline constexpr char kTokenPrefix[] = "titan_";

// A user's token, which is one word. Of its secret the controller keeps only the digest.
struct TokenText {
  std::string id, secret;
};

// "titan_ID_SECRET".
std::string to_text(const TokenText& token);
// Its parts; both are empty when it is not a token.
TokenText parse_token(absl::string_view text);
// 8 to 32 of a-z and 0-9.
bool is_token_id(absl::string_view id);

}  // namespace titan::rpc
