#include "common/config/suggest.h"

#include <utility>

#include "common/models/nearest.h"

namespace titan::config {
namespace {

// Short spellings that no edit distance connects to what they mean.
constexpr std::pair<std::string_view, std::string_view> kMeant[] = {
    {"bf16", "bfloat16"},   {"fp32", "float32"},    {"fp16", "float16"}, {"f32", "float32"},      {"fp64", "float64"},
    {"double", "float64"},  {"half", "float16"},    {"gpu", "cuda"},     {"off", "disabled"},     {"false", "disabled"},
    {"true", "always"},     {"sync", "disabled"},   {"ignore", "skip"},  {"constant", "linear"},  {"cos", "cosine"},
    {"optim", "optimizer"}, {"data", "dataloader"}, {"abort", "fail"},   {"forloop", "for-loop"},
};

}  // namespace

std::string nearest_value(const std::string& value, const std::vector<std::string>& allowed) {
  for (const auto& [spelling, meaning] : kMeant) {
    if (spelling != value) continue;
    for (const std::string& choice : allowed) {
      if (choice == meaning) return choice;
    }
  }
  return models::nearest(value, allowed);
}

std::string section_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return std::string(dot == key.npos ? "" : key.substr(0, dot));
}

std::string name_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return std::string(dot == key.npos ? key : key.substr(dot + 1));
}

std::string nearest_key(const std::string& key, const std::vector<std::string>& keys) {
  std::vector<std::string> same_name, same_section;
  for (const std::string& candidate : keys) {
    if (name_of(candidate) == name_of(key)) same_name.push_back(candidate);
    if (section_of(candidate) == section_of(key)) same_section.push_back(name_of(candidate));
  }
  if (same_name.size() == 1) return same_name.front();
  if (!same_name.empty()) {
    const std::string near = models::nearest(key, same_name);
    return near.empty() ? same_name.front() : near;
  }
  if (const std::string near = models::nearest(name_of(key), same_section); !near.empty()) {
    return section_of(key).empty() ? near : section_of(key) + "." + near;
  }
  return models::nearest(key, keys);
}

}  // namespace titan::config
