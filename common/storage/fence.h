#pragma once

#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/file.h"

namespace titan::storage {

// {dump}/fence.json names the highest attempt that may publish there. Publishing (manifest rename, metrics append)
// holds an exclusive lock on {dump}/.fence.lock from the check to its effect, so that a paused old attempt that wakes
// changes nothing.
class Fence {
 public:
  struct Holder {
    std::string job_uid;  // Empty: nobody yet.
    int attempt = 0;
    std::map<std::string, int> former;  // Jobs that held the folder before, with their highest attempt.
  };

  explicit Fence(std::string dump_folder, Files& files = posix_files())
      : dump_folder_(std::move(dump_folder)), files_(files) {}

  // Raises the fence to `attempt` of `job_uid` (a new job on an old folder takes over at any number), creating the
  // folder. Errors: FailedPrecondition when the same job's fence is already higher, or when another job has taken the
  // folder over since.
  absl::Status raise(const std::string& job_uid, int attempt) const;

  // Runs `effect` under the lock if the fence still names exactly (job_uid, attempt); else FailedPrecondition "fenced:
  // ...".
  absl::Status publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const;

  // Who may publish now. DataLoss when fence.json cannot be understood.
  absl::StatusOr<Holder> holder() const;

 private:
  std::string dump_folder_;
  Files& files_;
};

// True for the status that publish() and raise() give to an attempt that may not publish any more.
bool is_fenced(const absl::Status& status);

}  // namespace titan::storage
