#include "common/models/nearest.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace titan::models {
namespace {

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

}  // namespace titan::models
