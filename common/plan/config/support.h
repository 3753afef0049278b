#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::config {

// One key whose feature does not exist and would change numbers or write files: it is refused unless it has its default
// value. Building the feature deletes the row.
struct Unsupported {
  std::string_view key;
  std::string_view feature;
  std::string_view instead = {};  // Why it never will, and what is there for it; empty: it does not exist yet.
};
const std::vector<Unsupported>& unsupported();

// One key whose feature does not exist yet and would only make training quicker or easier to watch: anything but the
// default is accepted with a warning. Building the feature deletes the row.
struct Harmless {
  std::string_view key;
  std::string_view instead;    // What happens instead.
  std::string_view only = {};  // Not empty: just for this value (as JSON text without quotes).
};
const std::vector<Harmless>& harmless();

// Keys that only shape a feature which another key turns on. Set while that is off they change nothing, in torchtitan
// too; its own recipes do that, so it is a warning. A key with several rows is idle while all their switches are off.
struct Detail {
  std::string_view key;  // A whole section when it ends with a dot.
  std::string_view switch_key;
  std::string_view off = {};     // The switch's value (as above) that makes the key idle; empty: its default.
  std::string_view except = {};  // Not empty: this value of the key still does something.
};
const std::vector<Detail>& details();

// The problems and warnings that these tables give for a configuration.
std::vector<Problem> check_support(const JobConfig& config, const std::map<std::string, Origin>& origins);
std::vector<std::string> support_warnings(const JobConfig& config, const std::map<std::string, Origin>& origins);

}  // namespace titan::config
