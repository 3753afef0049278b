#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::shim {

struct StackTarget {
  pid_t pid = 0;
  int rank = 0;
};

// Starts titan-stacks for these ranks and does not wait for it. rank-R.stacks (rank_protocol::stacks_path) appears,
// complete, as soon as that rank's stacks are known; all files exist when the returned child has ended, at most two
// seconds after the deadline. Removes the files of an earlier call first. The caller reaps the child; exit code 0 means
// that every rank has a file. `program`: path of titan-stacks. Errors: NotFound and others of starting a program, with
// its name.
absl::StatusOr<pid_t> start_stacks(const std::string& program, const std::string& run_folder,
                                   const std::vector<StackTarget>& ranks, int64_t deadline_milliseconds);

// Returns the path of titan-stacks in the folder of this program.
std::string stacks_program();

}  // namespace titan::shim
