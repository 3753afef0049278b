#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace titan::checkpoint {

// work(0) to work(count - 1), begun in this order on `threads` threads at most, the caller's among them. After one that
// failed nothing more is begun; of several errors the one of the lowest number is returned, or thrown as it was thrown.
absl::Status in_parallel(size_t count, int threads, absl::FunctionRef<absl::Status(size_t)> work);

}  // namespace titan::checkpoint
