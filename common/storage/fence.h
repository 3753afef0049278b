#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::storage {

// {dump}/fence.json names the highest attempt that may publish there. Publishing (manifest rename, metrics append) holds an
// exclusive lock on {dump}/.fence.lock from the check to its effect, so that a paused old attempt that wakes changes nothing.
class Fence {
 public:
  explicit Fence(std::string dump_folder) : dump_folder_(std::move(dump_folder)) {}

  // Raises the fence to `attempt` of `job_uid` (a new job on an old folder takes over at any number).
  // Errors: FailedPrecondition when the same job's fence is already higher.
  absl::Status raise(const std::string& job_uid, int attempt) const;

  // Runs `effect` under the lock if the fence still names exactly (job_uid, attempt); else FailedPrecondition "fenced: ...".
  absl::Status publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const;

 private:
  std::string dump_folder_;
};

}  // namespace titan::storage
