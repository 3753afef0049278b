#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/load.h"

namespace titan::config {

// A key for a missing feature that would change numbers or write files: rejected unless it has its default value.
// Delete the row when the feature exists.
struct Unsupported {
  std::string_view key;
  std::string_view feature;
  std::string_view instead = {};  // Why it will never exist, and its replacement; empty: it does not exist yet.
};
const std::vector<Unsupported>& unsupported();

// A key for a missing feature that would only make training faster or easier to watch: values other than the default
// are accepted with a warning. Delete the row when the feature exists.
struct IgnoredFeature {
  std::string_view key;
  std::string_view instead;    // Behavior without the feature.
  std::string_view only = {};  // Not empty: applies only to this value (as JSON text without quotes).
};
const std::vector<IgnoredFeature>& ignored_features();

// A key that only configures a feature which another key turns on. While that is off it has no effect, in torchtitan
// too; since torchtitan's own recipes set such keys, this is a warning. A key with several rows is idle while all its
// switches are off.
struct DependentKey {
  std::string_view key;  // A whole section when it ends with a dot.
  std::string_view switch_key;
  std::string_view off = {};     // Value of the switch (as above) that makes the key idle; empty: its default.
  std::string_view except = {};  // Not empty: this value of the key still has an effect.
};
const std::vector<DependentKey>& dependent_keys();

// Return the problems and warnings that these tables give for a configuration.
std::vector<Problem> check_support(const JobConfig& config, const std::map<std::string, Origin>& origins);
std::vector<std::string> support_warnings(const JobConfig& config, const std::map<std::string, Origin>& origins);

}  // namespace titan::config
