#pragma once

#include <map>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace titan::job {

// Changes to an accepted job. An accepted update is a record until its effect is written.
struct Update {
  std::optional<int> priority;
  std::optional<std::string> title;
  std::optional<std::map<std::string, std::string>> all_labels;  // Replaces all labels.
  std::map<std::string, std::optional<std::string>> labels;      // Changes single labels. No value removes the label.
  std::string etag;                                              // Expected etag. Empty: any.
  std::string actor;
};

void to_json(nlohmann::json& json, const Update& update);
void from_json(const nlohmann::json& json, Update& update);

}  // namespace titan::job
