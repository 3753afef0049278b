#pragma once

// Holds the flags that every verb accepts: how the controller is reached, with which token, and how results are
// printed.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/service/rpc/credentials.h"
#include "controller/cli/output.h"

namespace titan::cli {

// Security of the connection to the controller, and the proof of who the user is.
struct Access {
  rpc::Security security;
  std::string token_file;  // Empty: no token.
};

// Reads the token in a file, without blanks around it. Errors: PermissionDenied when others can read the file,
// InvalidArgument when it holds no token, those of the disk.
absl::StatusOr<std::string> read_token(const std::string& path);

inline constexpr char kDefaultController[] = "127.0.0.1:7700";
inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(10);

// Flags that every verb accepts.
struct Globals {
  std::string controller = kDefaultController;
  Access access;
  OutputFormat format = OutputFormat::kTable;
  bool wide = false;  // Tables with all columns.
  // Limit for one call; when given, `wait` and `submit --wait` apply it to the whole wait.
  absl::Duration timeout = kDefaultTimeout;
  bool timeout_given = false;

  absl::Duration whole_wait() const { return timeout_given ? timeout : absl::InfiniteDuration(); }
};

}  // namespace titan::cli
