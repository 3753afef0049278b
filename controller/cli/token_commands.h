#pragma once

// Carries out the verbs of `titanctl auth token`, and declares their flags.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/cli/globals.h"

namespace titan::cli {

struct TokenRequest {
  std::string user, role, expires;
  std::vector<std::string> projects;
};
int create_token(const Globals& globals, const TokenRequest& request);
int list_tokens(const Globals& globals);
int revoke_token(const Globals& globals, const std::string& id);

// Parses a token's lifetime: "30d", "12h", "90m". Errors: InvalidArgument.
absl::StatusOr<absl::Duration> parse_lifetime(const std::string& text);

}  // namespace titan::cli
