// Reads from a SQLite store, on a separate connection.

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "controller/store/connection.h"

namespace titan::store {

SqliteStore::Loaded SqliteStore::load(Connection& connection, const Head& head) const {
  Loaded loaded;
  if (!head.whole) {
    loaded.damage = "its head does not match its checksum";
    return loaded;
  }
  const absl::StatusOr<bool> found = connection.row.bind(head.row).step();
  if (absl::IsDataLoss(found.status())) {
    loaded.damage = std::string(found.status().message());
  } else if (!found.ok()) {
    loaded.failed = found.status();
  } else if (!*found) {
    loaded.damage = "its row of the log is missing";
  } else if (absl::StatusOr<RecordChange> row = read_row(connection.row); !row.ok()) {
    loaded.damage = "it does not match its checksum";
  } else if (row->key != head.key || !row->value) {
    loaded.damage = absl::StrCat("its head names a row of '", row->key, "'");
  } else {
    loaded.record = Record{std::move(row->key), *std::move(row->value), row->revision};
  }
  connection.row.reset();
  return loaded;
}

absl::StatusOr<std::optional<Record>> SqliteStore::get(const std::string& key) const {
  Head head;
  Loaded loaded;
  {
    sync::Lock lock(read_mutex_);
    TITAN_RETURN_IF_ERROR(execute(read_->database.get(), "BEGIN"));
    const absl::StatusOr<bool> found = read_->find.bind(key).step();
    if (found.ok() && *found) head = read_head(read_->find);
    read_->find.reset();
    if (found.ok() && *found) loaded = load(*read_, head);
    (void)execute(read_->database.get(), "COMMIT");
    TITAN_RETURN_IF_ERROR(found.status());
  }
  TITAN_RETURN_IF_ERROR(loaded.failed);
  if (loaded.record) return std::move(loaded.record);
  if (loaded.damage.empty()) {
    sync::Lock lock(aside_mutex_);
    const auto lost = lost_.find(key);
    if (lost == lost_.end()) return std::nullopt;
    loaded.damage = lost->second;
  } else {
    found_damaged(key, head.row, loaded.damage);
  }
  return absl::DataLossError(
      absl::StrCat("store: record '", key, "': ", loaded.damage, "; it is set aside and everything else is served"));
}

absl::StatusOr<std::vector<Record>> SqliteStore::scan(const std::string& prefix, const std::string& after,
                                                      int limit) const {
  std::vector<Record> records;
  std::vector<std::pair<Head, std::string>> damaged;
  absl::Status status;
  {
    sync::Lock lock(read_mutex_);
    TITAN_RETURN_IF_ERROR(execute(read_->database.get(), "BEGIN"));
    Statement& heads = read_->heads;
    std::string last = after;
    heads.bind(prefix).bind(after).bind(prefix_end(prefix));
    while (static_cast<int>(records.size()) < limit) {
      const absl::StatusOr<bool> more = heads.step();
      status = more.status();
      if (!more.ok() || !*more) break;
      const Head head = read_head(heads);
      // A damaged page may lead anywhere, even in circles.
      if (head.key <= last) {
        status = absl::DataLossError(absl::StrCat("store: the head of '", head.key, "' is out of order"));
        break;
      }
      last = head.key;
      Loaded loaded = load(*read_, head);
      status = loaded.failed;
      if (!status.ok()) break;
      if (loaded.record) {
        records.push_back(*std::move(loaded.record));
      } else {
        damaged.emplace_back(head, loaded.damage);
      }
    }
    heads.reset();
    (void)execute(read_->database.get(), "COMMIT");
  }
  for (const auto& [head, damage] : damaged) found_damaged(head.key, head.row, damage);
  if (!status.ok()) return status;
  return records;
}

absl::StatusOr<std::vector<RecordChange>> SqliteStore::changes(int64_t after_revision, int limit) const {
  sync::Lock lock(read_mutex_);
  TITAN_RETURN_IF_ERROR(execute(read_->database.get(), "BEGIN"));
  absl::StatusOr<std::vector<RecordChange>> found = read_changes(after_revision, limit);
  read_->row_revision.reset();
  read_->changes.reset();
  (void)execute(read_->database.get(), "COMMIT");
  return found;
}

// Finds the first change by bisection. Rows that were not compacted have no gaps, and revisions grow with them: no
// index is needed, and a missing row is noticed.
absl::StatusOr<std::vector<RecordChange>> SqliteStore::read_changes(int64_t after_revision, int limit) const {
  TITAN_ASSIGN_OR_RETURN(const Meta meta, read_meta(read_->database.get()));
  const auto compacted = [&](const std::string& why) {
    return absl::OutOfRangeError(absl::StrCat("revision ", after_revision, " ", why));
  };
  if (after_revision < meta.compacted_revision) {
    return compacted(absl::StrCat("was compacted; the oldest is ", meta.compacted_revision));
  }
  const int64_t end = meta.last_row + 1;
  int64_t first = meta.compacted_row + 1;
  for (int64_t high = end; first < high;) {
    const int64_t middle = first + (high - first) / 2;
    const absl::StatusOr<bool> there = read_->row_revision.bind(middle).step();
    // An unreadable row is found again below.
    const bool after = there.ok() && *there && read_->row_revision.integer(0) > after_revision;
    read_->row_revision.reset();
    if (after) {
      high = middle;
    } else {
      first = middle + 1;
    }
  }
  // The row before shows whether a damaged row misled the search.
  int64_t expected = std::max(first - 1, meta.compacted_row + 1);
  std::vector<RecordChange> found;
  read_->changes.bind(expected);
  while (true) {
    const absl::StatusOr<bool> more = read_->changes.step();
    if (!more.ok() && !absl::IsDataLoss(more.status())) return more.status();
    if (more.ok() && !*more && expected == end) return found;
    absl::StatusOr<RecordChange> change = absl::DataLossError("missing");
    if (more.ok() && *more && read_->changes.integer(4) == expected) change = read_row(read_->changes);
    if (!change.ok() || (expected < first) != (change->revision <= after_revision)) {
      found_damaged("", expected, "a change of the log is damaged");
      return compacted("is before a damaged change");
    }
    ++expected;
    if (change->revision <= after_revision) continue;
    if (static_cast<int>(found.size()) >= limit && change->revision != found.back().revision) return found;
    found.push_back(*std::move(change));
  }
}

int64_t SqliteStore::revision_before(absl::Time time) const {
  sync::Lock lock(aside_mutex_);
  return marks_.before(time);
}

}  // namespace titan::store
