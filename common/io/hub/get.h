#pragma once

// Selects files of a repository and downloads them into a local folder.

#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/hub/api.h"
#include "common/io/hub/download.h"

namespace titan::hub {

// Selects files of a repository.
struct FileSelection {
  bool all = false;
  std::vector<std::string> assets;   // From asset_kinds().
  std::vector<std::string> include;  // Globs of full names or of their last parts; `*` also matches slashes.
  std::vector<std::string> exclude;  // Globs of the same form to leave out.
};

// Returns tokenizer, config, index, safetensors.
std::vector<std::string> asset_kinds();

// Checks the kinds in `assets`. Errors: InvalidArgument, which lists the known kinds.
absl::Status check_selection(const FileSelection& selection);
// Returns the selected files; a selection without any choice means every kind of asset.
std::vector<RemoteFile> select(const FileSelection& selection, const std::vector<RemoteFile>& files);
// Returns the kinds and include globs that match no file.
std::vector<std::string> unmatched(const FileSelection& selection, const std::vector<RemoteFile>& files);

// Describes which files of a repository go into which local folder.
struct GetRequest {
  DownloadOptions transfer;
  std::string revision = "main";
  FileSelection selection;
  std::string folder;
  bool dry_run = false;  // Compare only.
};

struct GetResult {
  DownloadPlan plan;                   // State before the download.
  std::vector<std::string> unmatched;  // The --assets and --include values that match no file.
};

// Downloads the selected files, all from the commit that the revision names at the start. Errors: NotFound also when no
// file is selected; those of hub::HubClient, of the disk, and of hub::download; Cancelled once `stop` is requested.
absl::StatusOr<GetResult> get(const GetRequest& request, Watcher& watcher, const std::stop_token& stop);

}  // namespace titan::hub
