#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/fields.h"

namespace titan::config {

// Looks fields up by their full name over one JobConfig, which must outlive the catalog.
class Catalog {
 public:
  explicit Catalog(JobConfig& config);

  const Field* find(std::string_view key) const;  // Null when there is no such key.
  // Whether `name` is a section or the beginning of one ("quantize", "quantize.linear").
  bool is_section(std::string_view name) const;
  const std::vector<std::string>& keys() const { return keys_; }
  const std::vector<std::string>& section_names() const { return section_names_; }  // With the outer ones.
  std::vector<std::string> top_sections() const;

 private:
  std::map<std::string, Field, std::less<>> fields_;
  std::vector<std::string> keys_;
  std::vector<std::string> section_names_;
};

}  // namespace titan::config
