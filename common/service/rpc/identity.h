#pragma once

// Who a certificate names, in the one URI "titan:..." among its names.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace titan::rpc {

struct Identity {
  enum class Kind { kController, kNode, kUser, kAdmin };
  Kind kind = Kind::kUser;
  std::string name;  // Empty for controllers, which are alike.
};

std::string to_uri(const Identity& identity);
// Nothing when it is none of them, or there are several.
std::optional<Identity> identity_in(const std::vector<std::string>& uris);

}  // namespace titan::rpc
