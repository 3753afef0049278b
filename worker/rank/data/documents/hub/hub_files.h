#pragma once

// Finds and reads the files of a dataset on a hub, by the settings that Hugging Face's variables give.

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

// What Hugging Face's own variables say (hub::settings_from), with a cache in HF_HOME that the ranks of a node share,
// of TITAN_RANK_HUB_CACHE_GIB. What a person has to know of it, and waits between attempts, go to stderr. Errors: those
// of hub::settings_from, InvalidArgument for a number that is none.
absl::StatusOr<hub::StreamOptions> hub_options();

// Whether a place is a glob or a file by its name, and not a folder of files.
bool names_files(const std::string& place);

struct HubFile {
  std::string path;             // "hf://datasets/ORG/NAME@COMMIT/FILE".
  std::optional<int64_t> size;  // Unknown where an older record does not tell it.
};

// The files that the path stands for, in no order. The commit is that of the revision when it is asked for the first
// time: it is recorded in `folder` with the names, and a later call with the same folder, also from a job that resumes,
// gets the same without a request to the hub. "": nothing is recorded. Errors: NotFound when no file matches, those of
// hub::Client and of the disk; all name the path.
absl::StatusOr<std::vector<HubFile>> hub_files(const hub::StreamOptions& options, const hub::DatasetPath& path,
                                               const std::string& folder);

// Reads such files.
std::shared_ptr<data_files::RemoteFiles> open_hub(const hub::StreamOptions& options, const std::vector<HubFile>& files);

// What was said of the file or path, and, where the hub cannot be had, what to do without it.
absl::Status with_advice(const absl::Status& status, const std::string& endpoint, const std::string& path);

}  // namespace titan::data
