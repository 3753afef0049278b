#pragma once

// Selects the files of a repository that are wanted, and brings them into a folder of this machine.

#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/hub/api.h"
#include "common/io/hub/download.h"

namespace titan::hub {

// Which files of a repository are wanted.
struct Selection {
  bool all = false;
  std::vector<std::string> assets;   // Of asset_kinds().
  std::vector<std::string> include;  // Globs of whole names or of their last parts; `*` also stands for slashes.
  std::vector<std::string> exclude;  // The same, from all of the above.
};

// tokenizer, config, index, safetensors.
std::vector<std::string> asset_kinds();

// Errors: InvalidArgument that names the kinds there are.
absl::Status check_selection(const Selection& selection);
// With nothing said of what is wanted, every kind of asset.
std::vector<RemoteFile> select(const Selection& selection, const std::vector<RemoteFile>& files);
// The kinds and globs to include of which no file is.
std::vector<std::string> unmatched(const Selection& selection, const std::vector<RemoteFile>& files);

// Which files of a repository go into which folder of this machine.
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
