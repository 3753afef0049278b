#pragma once

#include "absl/status/status.h"

namespace titan::cli {

// What titanctl's exit status says; documented in `titanctl --help` and docs/howto/operate.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // The job failed, or the request was refused.
  kExitUsage = 2,        // Bad flags or a bad configuration.
  kExitNotFound = 3,     // No such job or node.
  kExitTimeout = 4,      // --timeout ran out.
  kExitUnavailable = 5,  // The controller cannot be reached.
  kExitInterrupted = 130,
  kExitPipeClosed = 141,  // The reader of stdout is gone; said by nothing else, as other tools do it.
};

// The exit code for an error, by its status code; NotFound of this machine's files is kExitUsage.
ExitCode exit_code(const absl::Status& status);

}  // namespace titan::cli
