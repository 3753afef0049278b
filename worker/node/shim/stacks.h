#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::shim {

struct StacksOf {
  pid_t pid = 0;
  int rank = 0;
};

// Starts titan-stacks for these ranks, and does not wait for it: rank-R.stacks (rank_protocol::stacks_path) is there,
// complete, as soon as it is known where that rank's threads are, of each rank once the child that is returned has
// ended, by the deadline and two seconds at most. What an earlier call left there is removed first. The caller reaps
// the child; exit code 0: there is something about every rank. `program`: titan-stacks of the shim's own folder.
// Errors: NotFound and others of starting a program, which name it.
absl::StatusOr<pid_t> start_stacks(const std::string& program, const std::string& run_folder,
                                   const std::vector<StacksOf>& ranks, int64_t deadline_milliseconds);

// Path of titan-stacks beside this program.
std::string stacks_program();

}  // namespace titan::shim
