#include "common/base/text/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace titan {
namespace {

// Short spellings that no edit distance connects to their meaning.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"bf16", "bfloat16"},   {"fp32", "float32"},    {"fp16", "float16"}, {"f32", "float32"},      {"fp64", "float64"},
    {"double", "float64"},  {"half", "float16"},    {"gpu", "cuda"},     {"off", "disabled"},     {"false", "disabled"},
    {"true", "always"},     {"sync", "disabled"},   {"ignore", "skip"},  {"constant", "linear"},  {"cos", "cosine"},
    {"optim", "optimizer"}, {"data", "dataloader"}, {"abort", "fail"},   {"forloop", "for-loop"},
};

// Counts insertions, deletions, replacements, and swaps of neighbours (optimal string alignment).
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> above, row(b.size() + 1), before;
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::move(above);
    above = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// "llama2" is not a misspelling of "llama3", nor "7B" of "1B".
bool differ_in_digits_alone(std::string a, std::string b) {
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.'; };
  if (a == b) return false;
  const bool both = std::erase_if(a, is_digit) > 0 && std::erase_if(b, is_digit) > 0;
  return both && a == b;
}

// Returns the number of edits between the two; a prefix of the other word counts as one edit.
size_t distance_of(const std::string& given, const std::string& known) {
  const bool abbreviates = given.size() > 1 && absl::StartsWith(known, given);
  const bool extends = known.size() > 2 && absl::StartsWith(given, known);
  const size_t edits = edit_distance(given, known);
  return abbreviates || extends ? std::min<size_t>(edits, 1) : edits;
}

// Returns the number of edits that make a word a different one: more than a third of its length.
size_t limit_of(const std::string& given) { return std::max<size_t>(2, given.size() / 3 + 1); }

}  // namespace

std::string nearest(const std::string& given, const std::vector<std::string>& candidates) {
  for (const auto& [spelling, meaning] : kSynonyms) {
    if (given != spelling) continue;
    const auto found = std::find(candidates.begin(), candidates.end(), meaning);
    if (found != candidates.end()) return *found;
  }
  const std::string lower = absl::AsciiStrToLower(given);
  std::string best;
  size_t best_distance = limit_of(lower);
  for (const std::string& candidate : candidates) {
    const std::string known = absl::AsciiStrToLower(candidate);
    if (differ_in_digits_alone(lower, known)) continue;
    const size_t distance = distance_of(lower, known);
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
  std::vector<std::string> same_name, same_section, near_section;
  const std::string section = section_of(key), name = name_of(key);
  for (const std::string& candidate : keys) {
    if (name_of(candidate) == name) same_name.push_back(candidate);
    if (section_of(candidate) == section) same_section.push_back(name_of(candidate));
    if (!nearest(section, {section_of(candidate)}).empty()) near_section.push_back(candidate);
  }
  if (same_name.size() == 1) return same_name.front();
  // When several sections have the name, only one that is spelled alike is a good guess.
  for (const std::string& candidate : same_name) {
    if (!nearest(section, {section_of(candidate)}).empty()) return candidate;
  }
  if (!same_name.empty()) return "";
  if (const std::string near = nearest(name, same_section); !near.empty()) {
    return section.empty() ? near : section + "." + near;
  }
  return nearest(key, near_section);
}

std::string did_you_mean(const std::string& given, const std::vector<std::string>& candidates) {
  const std::string best = nearest(given, candidates);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace titan
