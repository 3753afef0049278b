#pragma once

// Keeps a store's present records in memory, with recent changes and the records that were set aside.

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

// Backends whose records are checked elsewhere keep what was set aside in separate records, which nobody else writes.
// Their keys are this prefix and the key of the record that was set aside.
inline constexpr char kAsidePrefix[] = "quarantine/";

std::string aside_key(const std::string& key);
// Returns a transaction that erases the record and keeps its bytes with the reason. It is Aborted if the record was
// written since it was read.
Transaction setting_aside(const Record& record, const std::string& reason, absl::Time now);
// Parses a value made by setting_aside(). Returns nothing for any other value.
std::optional<Quarantined> read_aside(const std::string& key, const std::string& value);
// Returns the value to store when the record has been written or erased; nothing if the value is already marked so.
std::optional<std::string> no_longer_lost(const std::string& value);

// Pairs of times and last revisions, about one a minute. They give a record's age, so that records need no time.
class TimeMarks {
 public:
  struct Mark {
    int64_t time_s = 0;
    int64_t revision = 0;
  };
  void add(absl::Time time, int64_t revision);
  // Returns the last revision that is known to be older than `time`. 0: none.
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
  // Returns the revision of the record's last change; 0 if there is no such record.
  int64_t revision_of(const std::string& key) const;
  // The readers of Store.
  absl::StatusOr<std::optional<Record>> get(const std::string& key) const;
  std::vector<Record> scan(const std::string& prefix, const std::string& after, int limit) const;
  absl::StatusOr<std::vector<RecordChange>> changes(int64_t after_revision, int limit) const;
  std::vector<Quarantined> quarantined() const;

  // Returns the record's value; nullptr if there is no such record.
  const std::string* find(const std::string& key) const;
  // Returns the keys that begin with `prefix`.
  std::vector<std::string> keys(const std::string& prefix) const;

  // Applies the transaction with this revision, which must be the next one.
  void apply(int64_t revision, std::vector<RecordChange> changes);
  // Load a snapshot's records, then call start_at() with its revision: changes() has none up to that revision.
  void load(Record record) { records_[record.key] = std::move(record); }
  void start_at(int64_t revision) { revision_ = compacted_ = revision; }

 private:
  const int64_t keep_changes_;
  std::map<std::string, Record> records_;
  std::deque<RecordChange> changes_;
  int64_t compacted_ = 0;
  int64_t revision_ = 0;
};

// Checks transactions one after the other before any of them is applied: transactions of one group see each other.
class Draft {
 public:
  explicit Draft(const Table& table) : table_(table), next_(table.revision() + 1) {}

  // Returns the transaction's revision. Errors: Aborted and InvalidArgument, as for Committed.
  absl::StatusOr<int64_t> add(const Transaction& transaction);
  // Changes of the accepted transactions, in order. Erasing a missing record changes nothing.
  std::vector<std::vector<RecordChange>>& taken() { return taken_; }

 private:
  int64_t revision_of(const std::string& key) const;
  std::vector<std::string> keys(const std::string& prefix) const;
  // Returns the value of a record that was set aside; nullptr if there is none.
  const std::string* aside_of(const std::string& key) const;
  void change(std::vector<RecordChange>& changes, int64_t revision, const std::string& key,
              const std::optional<std::string>& value);

  const Table& table_;
  int64_t next_;
  std::map<std::string, int64_t> changed_;     // New revisions by key. 0: erased.
  std::map<std::string, std::string> asides_;  // Values of the keys in `changed_` that hold records set aside.
  std::vector<std::vector<RecordChange>> taken_;
};

}  // namespace titan::store
