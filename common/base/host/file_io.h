#pragma once

// Reads and writes small local files as a whole. Files that may be in an object store, or that tests make fail, go
// through common/io/storage.

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::host {

// Writes all of `bytes` to `descriptor`, in as many calls as needed. Errors: those of write(2), with `path` in the
// message; ResourceExhausted when the disk is full, possibly after part of the bytes was written.
absl::Status write_all(int descriptor, std::string_view bytes, const std::string& path);

// Returns the whole content of the file. Errors: the system's, naming the file.
absl::StatusOr<std::string> read_file(const std::string& path);

// Replaces a file atomically by renaming PATH.new. Readers, and a new process after a kill, find the old bytes or the
// new ones. With `durable` this also holds after a power failure. Errors: the system's, naming the file;
// FailedPrecondition when PATH.new is not a regular file. PATH.new may not be a symbolic link. `mode`: permissions of a
// new file, before the umask.
absl::Status replace_file(const std::string& path, const std::string& bytes, bool durable = false, mode_t mode = 0644);

}  // namespace titan::host
