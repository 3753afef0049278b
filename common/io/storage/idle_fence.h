#pragma once

// A dump folder that no job uses, for programs that tidy up in it and are no jobs.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/fence.h"

namespace titan::storage {

// No sign of life of the holder for kFenceSilence, by the file system's clock, or its process is seen to be gone.
absl::StatusOr<bool> fell_silent(Files& files, const std::string& dump_folder, const Fence::Holder& holder);

// Runs `effect` while no job holds the folder and none can begin to: under the fence's lock, which names the same
// holder afterwards. Errors: is_in_use() when a job holds it and may live.
absl::Status while_idle(Files& files, const std::string& dump_folder,
                        absl::FunctionRef<absl::Status(const Fence::Holder& last)> effect);

}  // namespace titan::storage
