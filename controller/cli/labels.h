#pragma once

// Labels as the command line writes them. What keys and values may be, the controller says.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "titan/v1/job.pb.h"

namespace titan::cli {

// "team=vision". Errors: InvalidArgument.
absl::StatusOr<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);

// "team=vision" sets one, "team-" takes it away: into the job and the mask of an update. Errors: InvalidArgument.
absl::Status add_label_changes(const std::vector<std::string>& words, v1::UpdateJobRequest& request);

// The filter for "team=vision", "team!=vision" and "team". Errors: InvalidArgument.
absl::StatusOr<std::string> label_filter(const std::string& word);

// As a word of a filter: in double quotes.
std::string quote(const std::string& text);

}  // namespace titan::cli
