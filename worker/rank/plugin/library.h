#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/plugin/abi.h"

// Libraries that a job brings (experimental.custom_import), with any contents.
namespace titan::plugin {

// Returns InvalidArgument, with the configuration key, the library's path and `why`.
absl::Status refuse(const std::string& path, const std::string& why);

// Returns the path of the library's file, with all links resolved. NotFound if this node has no such file.
absl::StatusOr<std::string> find(const std::string& path);

// Returns the description that the library (a path of find()) gives under a symbol of abi.h, or null if it has only
// other symbols of abi.h. The library stays loaded. Errors: InvalidArgument if it is outside the granted folders,
// cannot be loaded, has none of the symbols, or was compiled with other settings than `mine`; the message names them.
absl::StatusOr<const PluginHeader*> open(const std::string& path, const char* symbol, const PluginHeader& mine);

// Runs `trial`, which opens the library, in a child process first: an exception in a library's static initializers, or
// a call of exit, ends the process before anything can catch it. InvalidArgument if the trial did not complete. OK,
// without a trial, if no child can be started.
absl::Status try_in_child(const std::string& path, absl::FunctionRef<void()> trial);

}  // namespace titan::plugin
