#pragma once

// Creates new folders atomically, on local disks and in object stores.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/io/storage/file.h"

namespace titan::tools {

// Makes the new folder `path` with the files that `fill` writes into the folder passed to it. While it is written, it
// holds a sign, which names the writing process.
//
// On a local disk `fill` gets another folder next to it, or next to a link's target, which is renamed at the end. A
// store cannot rename, so there it gets `path` itself, and `fill` must write last what readers look for first (a
// manifest, an index). Remains of writers that are known to be dead are removed, including unfinished uploads. Errors:
// AlreadyExists if the folder exists or is being written; those of `fill`, after which nothing remains except what a
// store does not delete.
absl::Status write_atomically(storage::Files& files, const std::string& path,
                              absl::FunctionRef<absl::Status(const std::string& folder)> fill);

}  // namespace titan::tools
