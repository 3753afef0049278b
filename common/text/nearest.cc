#include "common/text/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace titan {
namespace {

// Short spellings that no edit distance connects to what they mean.
constexpr std::pair<std::string_view, std::string_view> kMeant[] = {
    {"bf16", "bfloat16"},   {"fp32", "float32"},    {"fp16", "float16"}, {"f32", "float32"},      {"fp64", "float64"},
    {"double", "float64"},  {"half", "float16"},    {"gpu", "cuda"},     {"off", "disabled"},     {"false", "disabled"},
    {"true", "always"},     {"sync", "disabled"},   {"ignore", "skip"},  {"constant", "linear"},  {"cos", "cosine"},
    {"optim", "optimizer"}, {"data", "dataloader"}, {"abort", "fail"},   {"forloop", "for-loop"},
};

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& given, const std::vector<std::string>& candidates) {
  for (const auto& [spelling, meaning] : kMeant) {
    if (given != spelling) continue;
    const auto found = std::find(candidates.begin(), candidates.end(), meaning);
    if (found != candidates.end()) return *found;
  }
  const std::string lower = absl::AsciiStrToLower(given);
  std::string best;
  // Further than half of the word, it is another word.
  size_t best_distance = std::max<size_t>(2, lower.size() / 2 + 1);
  for (const std::string& candidate : candidates) {
    const std::string known = absl::AsciiStrToLower(candidate);
    const bool abbreviates = lower.size() > 1 && absl::StartsWith(known, lower);
    const size_t edits = edit_distance(lower, known);
    const size_t distance = abbreviates ? std::min<size_t>(edits, 1) : edits;
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
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
    const std::string near = nearest(key, same_name);
    return near.empty() ? same_name.front() : near;
  }
  if (const std::string near = nearest(name_of(key), same_section); !near.empty()) {
    return section_of(key).empty() ? near : section_of(key) + "." + near;
  }
  return nearest(key, keys);
}

std::string did_you_mean(const std::string& given, const std::vector<std::string>& candidates) {
  const std::string best = nearest(given, candidates);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace titan
