#pragma once

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/status/status.h"

namespace titan::tools {

// Ends a subcommand, in its callback. Exit codes: 0 done, 1 failed or damaged, 2 usage, 3 not found.
inline void finish(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "titan-data: " << std::string(status.message()) << "\n";
  throw CLI::RuntimeError(absl::IsInvalidArgument(status) ? 2 : absl::IsNotFound(status) ? 3 : 1);
}

}  // namespace titan::tools
