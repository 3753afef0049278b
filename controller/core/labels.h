#pragma once

// Labels mark jobs, so that people and other programs find them again. No decision of the controller depends on them.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace titan::core {

using JobLabels = std::map<std::string, std::string>;

inline constexpr size_t kMaxLabels = 32;  // Per job.

// A key matches [a-z]([-a-z0-9._/]{0,61}[a-z0-9])?.
bool valid_label_key(absl::string_view key);
// A value has at most 63 characters of [A-Za-z0-9._-].
bool valid_label_value(absl::string_view value);

// Errors: InvalidArgument (LABELS_INVALID) with one violation for each invalid key or value, or one if there are too
// many labels. `field` names the labels in the violations.
absl::Status check_labels(const JobLabels& labels, const std::string& field = "labels");
// Checks only how many labels there are.
absl::Status check_label_count(const JobLabels& labels, const std::string& field = "labels");

}  // namespace titan::core
