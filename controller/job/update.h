#pragma once

#include <map>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace titan::job {

// What may change of a job after it was taken. An accepted one is a record until its effect is written.
struct Update {
  std::optional<int> priority;
  std::optional<std::string> title;
  std::optional<std::map<std::string, std::string>> all_labels;  // Instead of those there are.
  std::map<std::string, std::optional<std::string>> labels;      // One by one; no value takes it away.
  std::string etag;                                              // Empty: any.
  std::string actor;
};

void to_json(nlohmann::json& json, const Update& update);
void from_json(const nlohmann::json& json, Update& update);

}  // namespace titan::job
