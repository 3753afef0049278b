#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/plugin/abi.h"

// Libraries that a job brings (experimental.custom_import), whatever is in them.
namespace titan::plugin {

// InvalidArgument, with the key and the library before the reason.
absl::Status refuse(const std::string& path, const std::string& why);

// The library's file, all links followed. NotFound when this node has none.
absl::StatusOr<std::string> find(const std::string& path);

// What the library, a path of find(), says under a symbol of abi.h; null when it has only others of them. It stays
// loaded. Errors: InvalidArgument when it lies where this node grants nothing, cannot be loaded, has none of these
// symbols, or was compiled with something else than `mine`, which the error names.
absl::StatusOr<const Head*> open(const std::string& path, const char* symbol, const Head& mine);

// Does `trial`, which opens the library, in a process of its own first: what a library's static initialisers throw, or
// an exit that they call, ends the process before anything can catch it. InvalidArgument when it ended otherwise.
absl::Status try_elsewhere(const std::string& path, absl::FunctionRef<void()> trial);

}  // namespace titan::plugin
