#include "common/plan/config/source_weights.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"

namespace titan::config {
namespace {

constexpr double kUnits = 1e9;  // Of a weight of 1.
constexpr double kMostWeight = 1e6;

absl::StatusOr<std::int64_t> units(double weight) {
  if (!(weight >= 0) || weight > kMostWeight) return absl::InvalidArgumentError("the weight must be from 0 to 1e6");
  const auto count = static_cast<std::int64_t>(std::floor(weight * kUnits + 0.5));
  if (weight > 0 && count == 0) return absl::InvalidArgumentError("the weight must be 0, or at least 1e-9");
  return count;
}

struct Change {
  std::int64_t step = 0;
  std::int64_t weight = 0;
};

absl::StatusOr<Change> change_of(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  Change change;
  double weight = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(absl::StripAsciiWhitespace(parts[0]), &change.step) ||
      !absl::SimpleAtod(absl::StripAsciiWhitespace(parts[1]), &weight) || change.step < 2) {
    return absl::InvalidArgumentError("expects STEP: WEIGHT, such as \"1000: 0.25\", with a step of 2 or more");
  }
  TITAN_ASSIGN_OR_RETURN(change.weight, units(weight));
  return change;
}

// The weights of one source from the steps on at which they change.
absl::StatusOr<std::map<std::int64_t, std::int64_t>> changes_of(const DataSource& source) {
  std::map<std::int64_t, std::int64_t> changes;
  const auto named = [&](const absl::Status& status, const std::string& member) {
    return annotate(status, absl::StrCat("source \"", source.name, "\": ", member));
  };
  const absl::StatusOr<std::int64_t> first = units(source.weight);
  if (!first.ok()) return named(first.status(), absl::StrCat("weight = ", source.weight));
  changes[1] = *first;
  for (const std::string& text : source.weight_at_step) {
    const std::string member = absl::StrCat("weight_at_step \"", text, "\"");
    const absl::StatusOr<Change> change = change_of(text);
    if (!change.ok()) return named(change.status(), member);
    if (change->step <= changes.rbegin()->first) {
      return named(absl::InvalidArgumentError("its step must be above the one before"), member);
    }
    changes[change->step] = change->weight;
  }
  return changes;
}

}  // namespace

absl::StatusOr<std::vector<SourceWeights>> source_weights(const std::vector<DataSource>& sources) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_step;
  std::vector<std::map<std::int64_t, std::int64_t>> all;
  for (const DataSource& source : sources) {
    TITAN_ASSIGN_OR_RETURN(all.emplace_back(), changes_of(source));
    for (const auto& [step, weight] : all.back()) by_step[step];
  }
  std::vector<SourceWeights> schedule;
  for (auto& [step, weights] : by_step) {
    for (const auto& changes : all) weights.push_back(std::prev(changes.upper_bound(step))->second);
    if (std::all_of(weights.begin(), weights.end(), [](std::int64_t weight) { return weight == 0; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("no source has a weight above 0 from step ", step, " on: give one of them a weight"));
    }
    schedule.push_back({step, weights});
  }
  return schedule;
}

}  // namespace titan::config
