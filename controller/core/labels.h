#pragma once

// What people and other programs mark jobs with, to find them again. The controller decides nothing by them.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace titan::core {

using Labels = std::map<std::string, std::string>;

inline constexpr size_t kMostLabels = 32;

// [a-z]([-a-z0-9._/]{0,61}[a-z0-9])?
bool valid_label_key(absl::string_view key);
// At most 63 of [A-Za-z0-9._-].
bool valid_label_value(absl::string_view value);

// Errors: InvalidArgument (LABELS_INVALID) with one violation of `field` for each label that is none, and for too many.
absl::Status check_labels(const Labels& labels, const std::string& field = "labels");
absl::Status check_label_count(const Labels& labels, const std::string& field = "labels");

}  // namespace titan::core
