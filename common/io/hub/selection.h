#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/hub/listing.h"

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

}  // namespace titan::hub
