#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::data {

// What changes when one of the files does: a checksum of their names, sizes and times of change, and the bytes of all.
// Part of the names of what is kept beside data. `more` is what it depends on besides. Errors: what the disk says.
absl::StatusOr<std::string> file_facts(const std::vector<std::string>& files, const std::string& more = "");
// The same of remote files, whose names say which commit they are of.
std::string remote_facts(const std::vector<std::string>& files, const std::string& more);

}  // namespace titan::data
