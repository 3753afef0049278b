#pragma once

// Old steps go, by the rule of checkpoint.keep_latest_k, where no job runs that would do it.

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "common/io/storage/file.h"

namespace titan::tools {

struct PruneOptions {
  int keep = 0;            // The newest so many stay.
  int64_t keep_every = 0;  // And those whose number it divides; 0: none.
  bool dry_run = false;
  std::string dump_folder;  // Of the job that wrote them; empty: as the steps say, and where a fence is found above.
};

// `folder`: of steps, of files or of objects. The newest full step whose every byte is as it was written stays whatever
// the options say, and so does the one that the folder's job knows to have committed; what somebody reads stays as
// well. A step disappears at once, its bytes follow. Errors: is_in_use() while a job runs there; DataLoss when no step
// is whole: then nothing is removed.
absl::Status prune(storage::Files& files, const std::string& folder, const PruneOptions& options, std::ostream& out);

}  // namespace titan::tools
