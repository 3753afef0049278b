#include "controller/store/table.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::store {

void TimeMarks::add(absl::Time time, int64_t revision) {
  constexpr int64_t kMinute = 60;
  constexpr size_t kKept = 200'000;  // Four months and a half of minutes.
  const int64_t now = absl::ToUnixSeconds(time);
  // A clock that was set back makes no mark until it has caught up.
  if (!marks_.empty() && now < marks_.back().time_s + kMinute) return;
  marks_.push_back({now, revision});
  if (marks_.size() > kKept) marks_.pop_front();
}

int64_t TimeMarks::before(absl::Time time) const {
  const int64_t limit = absl::ToUnixSeconds(time);
  const auto after =
      std::partition_point(marks_.begin(), marks_.end(), [limit](const Mark& mark) { return mark.time_s < limit; });
  return after == marks_.begin() ? 0 : std::prev(after)->revision;
}

int64_t Table::revision_of(const std::string& key) const {
  const auto it = records_.find(key);
  return it == records_.end() ? 0 : it->second.revision;
}

std::optional<Record> Table::get(const std::string& key) const {
  const auto it = records_.find(key);
  return it == records_.end() ? std::nullopt : std::make_optional(it->second);
}

std::vector<Record> Table::scan(const std::string& prefix, const std::string& after, int limit) const {
  std::vector<Record> found;
  auto it = after < prefix ? records_.lower_bound(prefix) : records_.upper_bound(after);
  for (; it != records_.end() && static_cast<int>(found.size()) < limit && absl::StartsWith(it->first, prefix); ++it) {
    found.push_back(it->second);
  }
  return found;
}

absl::StatusOr<std::vector<Change>> Table::changes(int64_t after_revision, int limit) const {
  if (after_revision < compacted_) {
    return absl::OutOfRangeError(
        absl::StrCat("revision ", after_revision, " was compacted; the oldest is ", compacted_));
  }
  auto it = std::partition_point(changes_.begin(), changes_.end(),
                                 [after_revision](const Change& change) { return change.revision <= after_revision; });
  std::vector<Change> found;
  for (; it != changes_.end(); ++it) {
    if (static_cast<int>(found.size()) >= limit && it->revision != found.back().revision) break;
    found.push_back(*it);
  }
  return found;
}

void Table::apply(int64_t revision, std::vector<Change> changes) {
  revision_ = revision;
  for (Change& change : changes) {
    if (change.value) {
      records_[change.key] = {change.key, *change.value, revision};
    } else {
      records_.erase(change.key);
    }
    changes_.push_back(std::move(change));
  }
  while (static_cast<int64_t>(changes_.size()) > keep_changes_) {
    compacted_ = changes_.front().revision;
    changes_.pop_front();
  }
}

int64_t Draft::revision_of(const std::string& key) const {
  const auto it = changed_.find(key);
  return it == changed_.end() ? table_.revision_of(key) : it->second;
}

absl::StatusOr<int64_t> Draft::add(const Transaction& transaction) {
  for (const Mutation& mutation : transaction.mutations) {
    if (!mutation.expected_revision) continue;
    const int64_t current = revision_of(mutation.key);
    if (current != *mutation.expected_revision) {
      return absl::AbortedError(
          absl::StrCat(mutation.key, " is at revision ", current, ", not ", *mutation.expected_revision));
    }
  }
  const int64_t revision = next_++;
  std::vector<Change>& changes = taken_.emplace_back();
  for (const Mutation& mutation : transaction.mutations) {
    if (!mutation.value && revision_of(mutation.key) == 0) continue;
    changes.push_back({revision, mutation.key, mutation.value});
    changed_[mutation.key] = mutation.value ? revision : 0;
  }
  return revision;
}

}  // namespace titan::store
