#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/load.h"

namespace titan::config {

// One key whose feature does not exist yet: it is refused unless it has its default value. Building the feature deletes
// the row.
struct Unsupported {
  std::string_view key;
  std::string_view feature;
  std::vector<std::string_view> only = {};  // Not empty: just these values are refused (as JSON text without quotes).
  std::vector<std::string_view> fine = {};  // Values beside the default that already hold today.
  std::string_view where = {};              // Not empty: only where another key has a value, "section.key = value".
};
const std::vector<Unsupported>& unsupported();

// Keys that only shape a feature which another key turns on. Set while that is off they change nothing, in torchtitan
// too; its own recipes do that, so it is a warning.
struct Detail {
  std::string_view key;  // A whole section when it ends with a dot.
  std::string_view switch_key;
};
const std::vector<Detail>& details();

// The problems and warnings that these two tables give for a configuration.
std::vector<Problem> check_support(const JobConfig& config, const std::map<std::string, Origin>& origins);
std::vector<std::string> detail_warnings(const JobConfig& config, const std::map<std::string, Origin>& origins);

}  // namespace titan::config
