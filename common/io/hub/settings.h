#pragma once

// Finds the hub and the token, from the same variables as Hugging Face's own tools.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/http/settings.h"

namespace titan::hub {

// Returns the settings for a hub. `endpoint` and `token_file` are from the command line; empty: HF_ENDPOINT, and
// HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file that HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME or HOME lead to. Adds a line
// to `warnings` when others can read that file. Errors: InvalidArgument, PermissionDenied for a `token_file` that
// others can read, FailedPrecondition with HF_HUB_OFFLINE, those of the disk.
absl::StatusOr<http::HttpSettings> settings_from(const http::Environment& environment, const std::string& endpoint,
                                                 const std::string& token_file, std::vector<std::string>& warnings);

// Returns the folder of Hugging Face's own tools: HF_HOME, or huggingface in the user's cache folder. "" without a
// home.
std::string home_folder(const http::Environment& environment);

}  // namespace titan::hub
