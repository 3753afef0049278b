#pragma once

// Reads and writes small local files as a whole. What may lie in an object store, or must fail on demand, goes through
// common/io/storage.

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::host {

// Writes all of `bytes` to `descriptor`, in as many calls as that takes. Errors: those of write(2), with `path` in the
// message; ResourceExhausted when the disk is full, which may have taken a part.
absl::Status write_all(int descriptor, std::string_view bytes, const std::string& path);

// All of the file. Errors: the system's, naming the file.
absl::StatusOr<std::string> read_file(const std::string& path);

// Replaces a file in one step, by way of PATH.new: a reader, or a new process after a kill, finds the old bytes or the
// new ones. `durable` also holds over a power failure. Errors: the system's, naming the file; FailedPrecondition where
// PATH.new is not a regular file. Symbolic links are not followed.
absl::Status replace_file(const std::string& path, const std::string& bytes, bool durable = false, mode_t mode = 0644);

}  // namespace titan::host
