#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace titan::checkpoint {

// Runs work(0) to work(count - 1), started in this order on at most `threads` threads, the caller's included. Starts
// nothing more after a failure. Of several failures the one with the lowest number is returned, or rethrown.
absl::Status in_parallel(size_t count, int threads, absl::FunctionRef<absl::Status(size_t)> work);

}  // namespace titan::checkpoint
