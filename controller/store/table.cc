#include "controller/store/table.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::store {
namespace {

// A value is "lost 17 1700000000 9
// " (revision, time, length of the reason), the reason, and the record's value.
constexpr char kLost[] = "lost ", kOver[] = "over ";

}  // namespace

std::string aside_key(const std::string& key) { return kAsidePrefix + key; }

Transaction setting_aside(const Record& record, const std::string& reason, absl::Time now) {
  std::string kept = absl::StrCat(kLost, record.revision, " ", absl::ToUnixSeconds(now), " ", reason.size(), "\n");
  absl::StrAppend(&kept, reason, record.value);
  Transaction transaction;
  transaction.mutations = {{record.key, std::nullopt, record.revision}, put(aside_key(record.key), std::move(kept))};
  return transaction;
}

std::optional<Quarantined> read_aside(const std::string& key, const std::string& value) {
  const size_t end = value.find('\n');
  if (end == std::string::npos || !absl::StartsWith(key, kAsidePrefix)) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(value.substr(0, end), ' ');
  Quarantined aside;
  aside.key = key.substr(strlen(kAsidePrefix));
  size_t reason = 0;
  if (fields.size() != 4 || !absl::SimpleAtoi(fields[1], &aside.revision) ||
      !absl::SimpleAtoi(fields[2], &aside.time_s) || !absl::SimpleAtoi(fields[3], &reason)) {
    return std::nullopt;
  }
  aside.lost = fields[0] == "lost";
  aside.reason = value.substr(end + 1, reason);
  return aside;
}

std::optional<std::string> no_longer_lost(const std::string& value) {
  if (!absl::StartsWith(value, kLost)) return std::nullopt;
  return kOver + value.substr(strlen(kLost));
}

void TimeMarks::add(absl::Time time, int64_t revision) {
  constexpr int64_t kMinute = 60;
  constexpr size_t kKept = 200'000;  // Four and a half months, in minutes.
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

absl::StatusOr<std::optional<Record>> Table::get(const std::string& key) const {
  const auto it = records_.find(key);
  if (it != records_.end()) return std::make_optional(it->second);
  const std::string* aside = find(aside_key(key));
  const std::optional<Quarantined> read = aside == nullptr ? std::nullopt : read_aside(aside_key(key), *aside);
  if (!read || !read->lost) return std::nullopt;
  return absl::DataLossError(absl::StrCat("store: record '", key, "': ", read->reason, "; it is set aside"));
}

const std::string* Table::find(const std::string& key) const {
  const auto it = records_.find(key);
  return it == records_.end() ? nullptr : &it->second.value;
}

std::vector<std::string> Table::keys(const std::string& prefix) const {
  std::vector<std::string> found;
  for (auto it = records_.lower_bound(prefix); it != records_.end() && absl::StartsWith(it->first, prefix); ++it) {
    found.push_back(it->first);
  }
  return found;
}

std::vector<Quarantined> Table::quarantined() const {
  std::vector<Quarantined> all;
  for (const std::string& key : keys(kAsidePrefix)) {
    if (std::optional<Quarantined> aside = read_aside(key, *find(key))) all.push_back(*std::move(aside));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Quarantined& one, const Quarantined& other) { return one.time_s < other.time_s; });
  return all;
}

std::vector<Record> Table::scan(const std::string& prefix, const std::string& after, int limit) const {
  std::vector<Record> found;
  auto it = after < prefix ? records_.lower_bound(prefix) : records_.upper_bound(after);
  for (; it != records_.end() && static_cast<int>(found.size()) < limit && absl::StartsWith(it->first, prefix); ++it) {
    found.push_back(it->second);
  }
  return found;
}

absl::StatusOr<std::vector<RecordChange>> Table::changes(int64_t after_revision, int limit) const {
  if (after_revision < compacted_) {
    return absl::OutOfRangeError(
        absl::StrCat("revision ", after_revision, " was compacted; the oldest is ", compacted_));
  }
  auto it = std::partition_point(changes_.begin(), changes_.end(), [after_revision](const RecordChange& change) {
    return change.revision <= after_revision;
  });
  std::vector<RecordChange> found;
  for (; it != changes_.end(); ++it) {
    if (static_cast<int>(found.size()) >= limit && it->revision != found.back().revision) break;
    found.push_back(*it);
  }
  return found;
}

void Table::apply(int64_t revision, std::vector<RecordChange> changes) {
  revision_ = revision;
  for (RecordChange& change : changes) {
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

std::vector<std::string> Draft::keys(const std::string& prefix) const {
  std::vector<std::string> found = table_.keys(prefix);
  for (auto it = changed_.lower_bound(prefix); it != changed_.end() && absl::StartsWith(it->first, prefix); ++it) {
    if (table_.find(it->first) == nullptr) found.push_back(it->first);
  }
  return found;
}

const std::string* Draft::aside_of(const std::string& key) const {
  const auto it = asides_.find(aside_key(key));
  return it == asides_.end() ? table_.find(aside_key(key)) : &it->second;
}

void Draft::change(std::vector<RecordChange>& changes, int64_t revision, const std::string& key,
                   const std::optional<std::string>& value) {
  if (const std::string* aside = aside_of(key)) {
    if (std::optional<std::string> over = no_longer_lost(*aside)) change(changes, revision, aside_key(key), over);
  }
  if (!value && revision_of(key) == 0) return;
  changes.push_back({revision, key, value});
  changed_[key] = value ? revision : 0;
  if (value && absl::StartsWith(key, kAsidePrefix)) asides_[key] = *value;
}

absl::StatusOr<int64_t> Draft::add(const Transaction& transaction) {
  for (const std::string& prefix : transaction.erased_prefixes) {
    if (prefix.empty()) return absl::InvalidArgumentError("store: an empty prefix would erase everything");
  }
  for (const Mutation& mutation : transaction.mutations) {
    if (!mutation.expected_revision) continue;
    const int64_t current = revision_of(mutation.key);
    if (current != *mutation.expected_revision) {
      return absl::AbortedError(
          absl::StrCat(mutation.key, " is at revision ", current, ", not ", *mutation.expected_revision));
    }
  }
  const int64_t revision = next_++;
  std::vector<RecordChange>& changes = taken_.emplace_back();
  for (const std::string& prefix : transaction.erased_prefixes) {
    for (const std::string& key : keys(prefix)) change(changes, revision, key, std::nullopt);
    for (const std::string& key : keys(aside_key(prefix))) {
      change(changes, revision, key.substr(aside_key("").size()), std::nullopt);
    }
  }
  for (const Mutation& mutation : transaction.mutations) change(changes, revision, mutation.key, mutation.value);
  return revision;
}

}  // namespace titan::store
