#pragma once

// Keeps the present of a store's records in memory, with recent changes and the records that were set aside.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/store/store.h"

namespace titan::store {

// Backends whose records are checked elsewhere keep those that were set aside as records of their own, in which nobody
// else writes. The keys of such records begin so; the key of the record that was set aside follows.
inline constexpr char kAsidePrefix[] = "quarantine/";

std::string aside_key(const std::string& key);
// Its bytes stay with the reason. Aborted when it was written since it was read.
Transaction setting_aside(const Record& record, const std::string& reason, absl::Time now);
// Nothing: the value is not one of setting_aside().
std::optional<Quarantined> read_aside(const std::string& key, const std::string& value);
// The value of a record that has been written or erased since. Nothing: that is so already.
std::optional<std::string> no_longer_lost(const std::string& value);

// Which revision was the last at which time, about one pair a minute: how old a record is, without a time in each.
class TimeMarks {
 public:
  struct Mark {
    int64_t time_s = 0;
    int64_t revision = 0;
  };
  void add(absl::Time time, int64_t revision);
  // The last revision that is known to be older than `time`; 0: none.
  int64_t before(absl::Time time) const;
  const std::deque<Mark>& all() const { return marks_; }

 private:
  std::deque<Mark> marks_;
};

// Records and recent changes in memory, for backends whose log is elsewhere. Not thread-safe.
class Table {
 public:
  // Keeps about this many changes for watchers.
  explicit Table(int64_t keep_changes) : keep_changes_(keep_changes) {}

  int64_t revision() const { return revision_; }
  // Of the record's last change; 0: there is no such record.
  int64_t revision_of(const std::string& key) const;
  // The readers as Store has them.
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const;
  std::vector<Record> scan(const std::string& prefix, const std::string& after, int limit) const;
  absl::StatusOr<std::vector<Change>> changes(int64_t after_revision, int limit) const;
  std::vector<Quarantined> quarantined() const;

  // The record's value; nullptr: there is no such record.
  const std::string* find(const std::string& key) const;
  // Of the records whose keys begin with `prefix`.
  std::vector<std::string> keys(const std::string& prefix) const;

  // The transaction `revision`, which is the next one.
  void apply(int64_t revision, std::vector<Change> changes);
  // What a snapshot holds; then the first revision that changes() knows nothing of.
  void load(Record record) { records_[record.key] = std::move(record); }
  void start_at(int64_t revision) { revision_ = compacted_ = revision; }

 private:
  const int64_t keep_changes_;
  std::map<std::string, Record> records_;
  std::deque<Change> changes_;
  int64_t compacted_ = 0;
  int64_t revision_ = 0;
};

// Decides transactions one after the other before any of them is applied: those that share a group see each other.
class Draft {
 public:
  explicit Draft(const Table& table) : table_(table), next_(table.revision() + 1) {}

  // Its revision; Aborted and InvalidArgument as Committed has them.
  absl::StatusOr<int64_t> add(const Transaction& transaction);
  // Of the transactions that were taken, in order; erasing what is not there changes nothing.
  std::vector<std::vector<Change>>& taken() { return taken_; }

 private:
  int64_t revision_of(const std::string& key) const;
  std::vector<std::string> keys(const std::string& prefix) const;
  // Of a record that was set aside; nullptr: it was not.
  const std::string* aside_of(const std::string& key) const;
  void change(std::vector<Change>& changes, int64_t revision, const std::string& key,
              const std::optional<std::string>& value);

  const Table& table_;
  int64_t next_;
  std::map<std::string, int64_t> changed_;     // 0: erased.
  std::map<std::string, std::string> asides_;  // Those of `changed_` that hold what was set aside.
  std::vector<std::vector<Change>> taken_;
};

}  // namespace titan::store
