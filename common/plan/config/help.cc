#include "absl/strings/str_cat.h"
#include "common/plan/config/assign.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/json.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

bool belongs(std::string_view name, std::string_view section) {
  return section.empty() || name == section ||
         (name.size() > section.size() && name.substr(0, section.size()) == section && name[section.size()] == '.');
}

}  // namespace

std::vector<std::string> section_names() {
  JobConfig config;
  std::vector<std::string> names;
  for (const Section& section : sections(config)) names.emplace_back(section.name);
  return names;
}

std::string help(std::string_view wanted) {
  JobConfig config;
  const nlohmann::json defaults = to_json(config);
  std::string text;
  for (const Section& section : sections(config)) {
    if (!belongs(section.name, wanted)) continue;
    const std::string name(section.name);
    std::string pointer = "/" + name;
    for (char& c : pointer) c = c == '.' ? '/' : c;
    absl::StrAppend(&text, text.empty() ? "" : "\n", "[", name, "]  ", std::string(section.meaning), "\n");
    for (const Field& field : section.fields) {
      const nlohmann::json value = defaults[nlohmann::json::json_pointer(pointer)][std::string(field.key)];
      absl::StrAppend(&text, "  --", name, ".", std::string(field.key), " (default ",
                      value.is_null() ? "None" : value.dump(), ")\n      ", std::string(field.meaning),
                      ".\n      Takes ", expected(field), ".");
      if (!field.no_effect.empty()) absl::StrAppend(&text, " No effect: ", std::string(field.no_effect), ".");
      absl::StrAppend(&text, "\n");
    }
  }
  return text;
}

}  // namespace titan::config
