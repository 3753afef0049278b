#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/service/rpc/credentials.h"

namespace titan::cli {

// How titanctl speaks to the controller, and proves for whom.
struct Access {
  rpc::Security security;
  std::string token_file;  // Empty: no token.
};

// What the file holds, without blanks around it. Errors: PermissionDenied when others can read the file,
// InvalidArgument when it holds no token, those of the disk.
absl::StatusOr<std::string> read_token(const std::string& path);

}  // namespace titan::cli
