#pragma once

// Defines how callers identify themselves: by a URI in a certificate, or by the text of a user's token.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace titan::rpc {

// Identity in a certificate: its one "titan:..." URI.
struct Identity {
  enum class Kind { kController, kNode, kUser, kAdmin };
  Kind kind = Kind::kUser;
  std::string name;  // Empty for controllers, which share one identity.
};

std::string to_uri(const Identity& identity);
// Returns the identity in the names of a certificate; nothing without exactly one valid "titan:" URI.
std::optional<Identity> identity_in(const std::vector<std::string>& uris);

inline constexpr char kTokenPrefix[] = "titan_";

// A user's token, a single word. The controller stores only the digest of the secret.
struct TokenText {
  std::string id, secret;
};

// Returns "titan_ID_SECRET".
std::string to_text(const TokenText& token);
// Returns the parts; both are empty when `text` is not a token.
TokenText parse_token(absl::string_view text);
// Returns whether `id` is 8 to 32 characters of a-z and 0-9.
bool is_token_id(absl::string_view id);

}  // namespace titan::rpc
