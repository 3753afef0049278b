#include "controller/job/update.h"

namespace titan::job {

void to_json(nlohmann::json& json, const Update& update) {
  json = {{"etag", update.etag}, {"actor", update.actor}, {"labels", nlohmann::json::object()}};
  for (const auto& [key, value] : update.labels) {
    json["labels"][key] = value ? nlohmann::json(*value) : nlohmann::json(nullptr);
  }
  if (update.priority) json["priority"] = *update.priority;
  if (update.title) json["title"] = *update.title;
  if (update.all_labels) json["all_labels"] = *update.all_labels;
}

void from_json(const nlohmann::json& json, Update& update) {
  for (const auto& [key, value] : json.at("labels").items()) {
    update.labels[key] = value.is_null() ? std::nullopt : std::optional<std::string>(value.get<std::string>());
  }
  json.at("etag").get_to(update.etag);
  json.at("actor").get_to(update.actor);
  if (json.contains("priority")) update.priority = json["priority"].get<int>();
  if (json.contains("title")) update.title = json["title"].get<std::string>();
  if (json.contains("all_labels")) update.all_labels = json["all_labels"].get<std::map<std::string, std::string>>();
}

}  // namespace titan::job
