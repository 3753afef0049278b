#pragma once

// Finds and reads the files of a dataset on a hub, with the settings of Hugging Face's environment variables.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/hub/names.h"
#include "common/io/hub/stream.h"

namespace titan::data {

// Returns the settings from Hugging Face's environment variables (hub::settings_from), with a cache in HF_HOME that the
// ranks of a node share. TITAN_RANK_HUB_CACHE_GIB is its size; 0: no cache. Warnings, and waits between attempts, go to
// stderr. Errors: those of hub::settings_from; InvalidArgument if the size is not a valid number.
absl::StatusOr<hub::StreamOptions> hub_options();

// Returns whether a place is a glob or a file name, and not a folder of files.
bool names_files(const std::string& place);

// A file of a dataset on a hub, at a fixed commit.
struct HubFile {
  std::string path;             // "hf://datasets/ORG/NAME@COMMIT/FILE".
  std::optional<int64_t> size;  // Unknown if an older record does not have it.
};

// Returns the files that the path stands for, in no particular order. The first call resolves the revision to a commit,
// and records it with the names in `folder`. A later call with the same folder, for example when the job resumes,
// returns the same files without a request to the hub. If `folder` is "", nothing is recorded. Errors: NotFound if no
// file matches, those of hub::HubClient and of the disk; all name the path.
absl::StatusOr<std::vector<HubFile>> hub_files(const hub::StreamOptions& options, const hub::DatasetPath& path,
                                               const std::string& folder);

// Returns a reader of these files.
std::shared_ptr<data_files::RemoteFiles> open_hub(const hub::StreamOptions& options, const std::vector<HubFile>& files);

// Adds the file or path to an error and, if the hub is unreachable, what to do without it.
absl::Status with_advice(const absl::Status& status, const std::string& endpoint, const std::string& path);

}  // namespace titan::data
