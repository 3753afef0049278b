#pragma once

// A repository's files in a folder of this machine.

#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/hub/download.h"
#include "common/io/hub/selection.h"

namespace titan::hub {

struct GetRequest {
  Transfer transfer;
  std::string revision = "main";
  Selection selection;
  std::string folder;
  bool dry_run = false;  // Only compare.
};

struct GetResult {
  Plan plan;                           // As it was before the download.
  std::vector<std::string> unmatched;  // What was asked for by --assets or --include and is nothing.
};

// Everything is of the commit that the revision is at the start. Errors: NotFound also when no file is wanted; those of
// hub::Client, of the disk, and of hub::download; Cancelled once `stop` says so.
absl::StatusOr<GetResult> get(const GetRequest& request, Watcher& watcher, const std::stop_token& stop);

}  // namespace titan::hub
