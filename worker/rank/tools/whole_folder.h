#pragma once

// New folders that are there whole or not at all, on the machine and in object stores.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/io/storage/file.h"

namespace titan::tools {

// Makes the new folder `path` with what `fill` writes into the folder that it is given, which holds a sign of who
// writes meanwhile.
//
// On the machine that is another folder beside it, or beside what a link leads to, which is renamed at the end. A store
// renames nothing: there it is `path` itself, and `fill` has to write last what readers look for first (a manifest, an
// index). What killed writers left goes where they can be seen to be gone, with their unfinished uploads. Errors:
// AlreadyExists when something is there, or is being written there; those of `fill`, after which nothing is left but
// what a store does not delete.
absl::Status make_whole(storage::Files& files, const std::string& path,
                        absl::FunctionRef<absl::Status(const std::string& folder)> fill);

}  // namespace titan::tools
