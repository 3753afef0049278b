// Finds records that do not match their checksums, sets them aside and keeps their bytes.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/connection.h"

namespace titan::store {
namespace {

failpoint::Failpoint found_point("store.aside"), kept_point("store.aside.kept"), buried_point("store.aside.buried"),
    moved_point("store.aside.moved");

}  // namespace

std::vector<Quarantined> SqliteStore::quarantined() const {
  std::vector<Quarantined> all;
  sync::Lock lock(aside_mutex_);
  all.reserve(aside_.size());
  for (const Aside& aside : aside_) all.push_back(aside.record);
  return all;
}

void SqliteStore::set_aside(const Record& record, const std::string& reason) {
  int64_t row = 0;
  {
    sync::Lock lock(read_mutex_);
    const absl::StatusOr<bool> found = read_->find.bind(record.key).step();
    const Head head = found.ok() && *found ? read_head(read_->find) : Head{};
    read_->find.reset();
    const Loaded loaded = load(*read_, head);
    if (loaded.record && loaded.record->revision == record.revision) row = head.row;
  }
  if (row > 0) found_damaged(record.key, row, reason);
}

// Notes the damage that a reader found, and lets the writing thread move the record. Readers see the damage at once,
// whether or not the disk has space for the move. Empty key: the owner of the row must be found first.
void SqliteStore::found_damaged(const std::string& key, int64_t row, const std::string& reason) const {
  {
    sync::Lock lock(aside_mutex_);
    if (!reported_.emplace(key, row).second) return;
  }
  if (!key.empty()) note_aside({key, 0, reason, true, row, absl::ToUnixSeconds(absl::Now())}, /*reported=*/false);
  auto* self = const_cast<SqliteStore*>(this);  // NOLINT(cppcoreguidelines-pro-type-const-cast): another thread's part.
  writer_->post([self, key, row, reason] {
    const absl::Status moved = key.empty() ? self->examine(row) : self->move_aside({key, 0, reason, true, row});
    if (moved.ok()) return;
    if (absl::IsInternal(moved)) self->writer_->fail(moved);
    sync::Lock lock(self->aside_mutex_);  // The next reader that finds it tries again.
    self->reported_.erase({key, row});
  });
}

// Returns whether on_damage must be called, which is once for each record.
bool SqliteStore::note_aside(const Quarantined& damaged, bool reported) const {
  sync::Lock lock(aside_mutex_);
  const auto same = std::find_if(aside_.begin(), aside_.end(), [&](const Aside& aside) {
    return !damaged.key.empty() && aside.record.key == damaged.key && aside.record.row == damaged.row;
  });
  Aside& aside = same == aside_.end() ? aside_.emplace_back() : *same;
  aside.record = damaged;
  if (damaged.lost) {
    lost_[damaged.key] = damaged.reason;
  } else {
    lost_.erase(damaged.key);
  }
  return reported && !std::exchange(aside.reported, reported);
}

// Forgets the damage to a record that was written again before it could be moved: nothing is lost.
void SqliteStore::forget_aside(const Quarantined& damaged) {
  sync::Lock lock(aside_mutex_);
  std::erase_if(aside_, [&](const Aside& aside) {
    return aside.record.key == damaged.key && aside.record.row == damaged.row && !aside.reported;
  });
  const bool lost = std::any_of(aside_.begin(), aside_.end(), [&](const Aside& aside) {
    return aside.record.key == damaged.key && aside.record.lost;
  });
  if (!lost) lost_.erase(damaged.key);
}

// Moves the record's bytes into the quarantine, with the reason.
absl::Status SqliteStore::move_aside(Quarantined damaged) {
  bool is_first = false;
  found_point.pass();
  absl::Status moved = in_transaction([&]() -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const bool found, write_->find.bind(damaged.key).step());
    const Head head = found ? read_head(write_->find) : Head{};
    write_->find.reset();
    is_first = !found || (head.whole && head.row != damaged.row);
    if (is_first) return absl::OkStatus();
    if (!head.whole) {
      damaged.lost = false;
      damaged.reason += "; the next start rebuilds the heads";
      return keep_aside(damaged);
    }
    TITAN_RETURN_IF_ERROR(keep_aside(damaged));
    kept_point.pass();
    TITAN_RETURN_IF_ERROR(bury_row(damaged.key, damaged.row));
    buried_point.pass();
    --meta_.heads;
    meta_.heads_sum -= head.crc;
    return write_->drop_head.bind(damaged.key).run();
  });
  moved_point.pass();
  if (moved.ok() && is_first) forget_aside(damaged);
  return moved;
}

// Removes a damaged row from the log, and older rows of its record, which must not reappear in its place. Watchers that
// have not passed the row must read the records again.
absl::Status SqliteStore::bury_row(const std::string& key, int64_t row) {
  sqlite3* db = write_->database.get();
  while (meta_.compacted_row < row && !compaction_stopped_) TITAN_RETURN_IF_ERROR(compact(meta_.last_row - row));
  {
    TITAN_ASSIGN_OR_RETURN(Statement next,
                           Statement::prepare(db, "SELECT revision FROM log WHERE id > ? ORDER BY id LIMIT 1"));
    const absl::StatusOr<bool> there = next.bind(row).step();
    const int64_t revision = there.ok() && *there ? next.integer(0) : meta_.last_revision;
    meta_.compacted_row = std::max(meta_.compacted_row, row);
    meta_.compacted_revision = std::max(meta_.compacted_revision, std::min(revision, meta_.last_revision));
  }
  TITAN_ASSIGN_OR_RETURN(Statement drop, Statement::prepare(db, "DELETE FROM log WHERE id = ?"));
  absl::Status dropped = drop.bind(row).run();
  if (dropped.ok() && !key.empty()) {
    TITAN_ASSIGN_OR_RETURN(Statement older, Statement::prepare(db, "DELETE FROM log WHERE id < ? AND key = ?"));
    dropped = older.bind(row).bind(key).run();
  }
  return absl::IsDataLoss(dropped) ? absl::OkStatus() : dropped;  // An unreadable page stays.
}

// Writes a record to the quarantine, inside a transaction. Readers and the journal see the damage at once, even if the
// transaction fails.
absl::Status SqliteStore::keep_aside(Quarantined damaged) {
  damaged.time_s = absl::ToUnixSeconds(absl::Now());
  sqlite3* db = write_->database.get();
  std::string value;
  bool readable = false;
  int64_t crc = 0;
  {
    const absl::StatusOr<bool> found = write_->row.bind(damaged.row).step();
    readable = found.ok() && *found;
    if (readable) {
      damaged.revision = write_->row.integer(0);
      value = write_->row.text(2);
      crc = write_->row.integer(3);
    }
    write_->row.reset();
  }
  TITAN_ASSIGN_OR_RETURN(
      Statement put, Statement::prepare(db,
                                        "INSERT INTO quarantine (key, revision, reason, lost, row, time_s, value, crc) "
                                        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  put.bind(damaged.key).bind(damaged.revision).bind(damaged.reason).bind(int64_t{damaged.lost}).bind(damaged.row);
  put.bind(damaged.time_s);
  if (readable) {
    put.bind(value);
  } else {
    put.bind_null();
  }
  TITAN_RETURN_IF_ERROR(put.bind(crc).run());
  const bool is_new = note_aside(damaged, /*reported=*/true);
  if (is_new && options_.on_damage) options_.on_damage(damaged);
  return absl::OkStatus();
}

// Returns the key of the record whose present value is in the row; "" if there is none.
absl::StatusOr<std::string> SqliteStore::owner_of(int64_t row) {
  TITAN_ASSIGN_OR_RETURN(Statement heads,
                         Statement::prepare(write_->database.get(), "SELECT key FROM heads WHERE id = ?"));
  TITAN_ASSIGN_OR_RETURN(const bool found, heads.bind(row).step());
  return found ? heads.text(0) : std::string();
}

absl::Status SqliteStore::examine(int64_t row) {
  TITAN_ASSIGN_OR_RETURN(const std::string owner, owner_of(row));
  if (!owner.empty()) return move_aside({owner, 0, "its row of the log is damaged or missing", true, row});
  return in_transaction([&] {
    TITAN_RETURN_IF_ERROR(keep_aside({"", 0, "an old change is damaged or missing", false, row}));
    return bury_row("", row);
  });
}

absl::StatusOr<CheckReport> SqliteStore::check() const {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connection::open(path_, options_.vfs));
  sqlite3* db = connection->database.get();
  {
    sync::Lock lock(check_mutex_);
    if (closing_) return absl::CancelledError("store: closing");
    if (checking_ != nullptr) return absl::UnavailableError("store: a check is already running");
    checking_ = db;
  }
  const absl::Cleanup over = [this] {
    sync::Lock lock(check_mutex_);
    checking_ = nullptr;
  };
  CheckReport report;
  TITAN_RETURN_IF_ERROR(execute(db, "BEGIN"));
  TITAN_ASSIGN_OR_RETURN(const Meta meta, read_meta(db));
  TITAN_ASSIGN_OR_RETURN(report.file, damage_of_heads(db, meta));
  {
    TITAN_ASSIGN_OR_RETURN(Statement pages, Statement::prepare(db, "PRAGMA quick_check(1)"));
    const absl::StatusOr<bool> checked = pages.step();
    if (!checked.ok() && !absl::IsDataLoss(checked.status())) return checked.status();
    const std::string answer = checked.ok() ? pages.text(0) : std::string(checked.status().message());
    if (answer != "ok") report.file = answer;
  }
  TITAN_ASSIGN_OR_RETURN(Statement rows, Statement::prepare(db, "SELECT revision, key, value, crc, id FROM log"));
  int64_t last = 0;
  while (true) {
    const absl::StatusOr<bool> more = rows.step();
    if (absl::IsDataLoss(more.status())) {
      report.file = std::string(more.status().message());
      return report;
    }
    if (!more.ok()) return more.status();
    if (!*more) return report;
    if (rows.integer(4) <= last) {
      report.file = "the log is out of order";
      return report;
    }
    last = rows.integer(4);
    ++report.rows;
    if (read_row(rows).ok()) continue;
    ++report.damaged;
    found_damaged("", rows.integer(4), "");
  }
}

void SqliteStore::check_loop() {
  absl::Duration wait = options_.check_after;
  while (true) {
    {
      sync::Lock lock(check_mutex_);
      check_wake_.wait_for(check_mutex_, absl::ToChronoMilliseconds(wait), [this] { return closing_; });
      if (closing_) return;
    }
    wait = absl::Hours(24);
    const absl::StatusOr<CheckReport> report = check();
    if (!report.ok() || report->file.empty() || !options_.on_damage) continue;
    options_.on_damage(
        {"", 0, absl::StrCat("the file is damaged: ", report->file, "; restore it from a backup"), false});
  }
}

}  // namespace titan::store
