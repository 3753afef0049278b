#include "common/plan/config/catalog.h"

#include <algorithm>
#include <iterator>

namespace titan::config {

Catalog::Catalog(JobConfig& config) {
  for (const Section& section : sections(config)) {
    for (const Field& field : section.fields) {
      keys_.push_back(std::string(section.name) + "." + std::string(field.key));
      fields_.emplace(keys_.back(), field);
    }
    for (std::size_t end = 0; end != section.name.npos;) {
      end = section.name.find('.', end + 1);
      const std::string name(section.name.substr(0, end));
      if (!is_section(name)) section_names_.push_back(name);
    }
  }
}

const Field* Catalog::find(std::string_view key) const {
  const auto found = fields_.find(key);
  return found == fields_.end() ? nullptr : &found->second;
}

bool Catalog::is_section(std::string_view name) const {
  return std::find(section_names_.begin(), section_names_.end(), name) != section_names_.end();
}

std::vector<std::string> Catalog::top_sections() const {
  std::vector<std::string> top;
  std::copy_if(section_names_.begin(), section_names_.end(), std::back_inserter(top),
               [](const std::string& name) { return name.find('.') == name.npos; });
  return top;
}

}  // namespace titan::config
