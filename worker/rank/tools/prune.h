#pragma once

// Removes old steps by the rule of checkpoint.keep_latest_k while no job runs that would do it.

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "common/io/storage/file.h"

namespace titan::tools {

struct PruneOptions {
  int keep = 0;            // Number of newest steps to keep.
  int64_t keep_every = 0;  // Also keeps steps whose number is a multiple of this. 0: none.
  bool dry_run = false;
  std::string dump_folder;  // Dump folder of the job that wrote the steps. Empty: the one recorded in steps, or one
                            // with a fence above.
};

// Removes steps of `folder`, which holds them as files or objects. Regardless of the options it keeps the newest intact
// full step, the step that the folder's job recorded as committed, and steps that are being read. A step disappears
// atomically; its bytes are freed later. Errors: is_in_use() while a job runs there; DataLoss if no step is intact, and
// then nothing is removed.
absl::Status prune(storage::Files& files, const std::string& folder, const PruneOptions& options, std::ostream& out);

}  // namespace titan::tools
