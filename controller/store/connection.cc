#include "controller/store/connection.h"

#include "absl/strings/str_cat.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"

namespace titan::store {

absl::StatusOr<std::unique_ptr<SqliteStore::Connection>> SqliteStore::Connection::open(const std::string& path,
                                                                                       const std::string& vfs) {
  auto connection = std::make_unique<Connection>();
  sqlite3* raw = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, vfs.empty() ? nullptr : vfs.c_str());
  connection->database.reset(raw);
  if (code != SQLITE_OK) return sqlite_status(raw, code, absl::StrCat("open ", path));
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 5000);
  bool is_new = false;
  {
    TITAN_ASSIGN_OR_RETURN(Statement pages, Statement::prepare(raw, "PRAGMA page_count"));
    TITAN_RETURN_IF_ERROR(pages.step().status());
    is_new = pages.integer(0) == 0;
  }
  // FULL also holds under WAL: a commit returns after its fsync. The store decides when the WAL is folded back, since
  // SQLite itself would ignore the errors. Only a new file is set to return free pages: that setting writes, and an
  // existing file must also open on a full disk.
  if (is_new) TITAN_RETURN_IF_ERROR(execute(raw, "PRAGMA auto_vacuum=INCREMENTAL"));
  TITAN_RETURN_IF_ERROR(execute(raw,
                                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0;"
                                "PRAGMA cache_size=-16000; PRAGMA mmap_size=0;"));
  return connection;
}

absl::Status SqliteStore::Connection::prepare() {
  sqlite3* db = database.get();
  const std::pair<Statement*, const char*> all[] = {
      {&find, "SELECT key, id, crc FROM heads WHERE key = ?"},
      {&row, "SELECT revision, key, value, crc FROM log WHERE id = ?"},
      {&insert, "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)"},
      {&set_head, "INSERT OR REPLACE INTO heads VALUES (?, ?, ?)"},
      {&drop_head, "DELETE FROM heads WHERE key = ?"},
      {&walk,
       "SELECT id, previous, key, value IS NULL, revision, crc FROM log WHERE id > ? AND id <= ? ORDER BY id LIMIT "
       "2000"},
      {&drop_row, "DELETE FROM log WHERE id = ? AND key = ?"},
      {&set_meta, "INSERT OR REPLACE INTO meta VALUES (?, ?)"},
      {&heads, "SELECT key, id, crc FROM heads WHERE key >= ? AND key > ? AND key < ? ORDER BY key"},
      {&row_revision, "SELECT revision FROM log WHERE id = ?"},
      {&changes, "SELECT revision, key, value, crc, id FROM log WHERE id >= ? ORDER BY id"},
  };
  for (const auto& [statement, sql] : all) {
    TITAN_ASSIGN_OR_RETURN(*statement, Statement::prepare(db, sql));
  }
  return absl::OkStatus();
}

namespace {

failpoint::Failpoint schema_point("store.schema"), schema_made_point("store.schema.made"), heads_point("store.heads"),
    heads_made_point("store.heads.made");

absl::StatusOr<int64_t> number(sqlite3* database, const char* query) {
  TITAN_ASSIGN_OR_RETURN(Statement read, Statement::prepare(database, query));
  TITAN_RETURN_IF_ERROR(read.step().status());
  return read.integer(0);
}

}  // namespace

absl::Status SqliteStore::make_schema() {
  sqlite3* db = write_->database.get();
  TITAN_ASSIGN_OR_RETURN(const int64_t there,
                         number(db, "SELECT count(*) FROM sqlite_schema WHERE name IN ('meta', 'log', 'heads')"));
  if (there != 0 && there != 3) return absl::DataLossError("lacks a table; restore the state folder from a backup");
  if (there == 3) {
    TITAN_ASSIGN_OR_RETURN(meta_, read_meta(db));
  }
  if (meta_.schema == 0) {
    meta_.schema = kSchemaVersion;
    meta_.id = host::random_hex(8);
    return in_transaction([&] {
      schema_point.pass();
      TITAN_RETURN_IF_ERROR(execute(db, kSchema));
      TITAN_RETURN_IF_ERROR(write_->prepare());
      schema_made_point.pass();
      return write_->set_meta.bind("schema_version").bind(int64_t{kSchemaVersion}).run();
    });
  }
  TITAN_RETURN_IF_ERROR(write_->prepare());
  return load_aside();
}

absl::Status SqliteStore::set_lost_aside(const std::vector<Quarantined>& lost) {
  for (const Quarantined& record : lost) {
    TITAN_RETURN_IF_ERROR(keep_aside(record));
    TITAN_RETURN_IF_ERROR(bury_row(record.key, record.row));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::check_heads() {
  sqlite3* db = write_->database.get();
  TITAN_ASSIGN_OR_RETURN(const std::string damage, damage_of_heads(db, meta_));
  if (damage.empty()) return absl::OkStatus();
  std::vector<Quarantined> lost;
  heads_point.pass();
  return in_transaction([&] {
    TITAN_RETURN_IF_ERROR(rebuild_heads(db, meta_, lost));
    heads_made_point.pass();
    TITAN_RETURN_IF_ERROR(keep_aside({"", 0, absl::StrCat(damage, "; the heads were rebuilt from the log"), false}));
    return set_lost_aside(lost);
  });
}

absl::Status SqliteStore::load_aside() {
  TITAN_ASSIGN_OR_RETURN(
      Statement rows,
      Statement::prepare(write_->database.get(),
                         "SELECT key, revision, reason, lost, row, time_s FROM quarantine ORDER BY number"));
  sync::Lock lock(aside_mutex_);
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return absl::OkStatus();
    const Quarantined record{rows.text(0),         rows.integer(1), rows.text(2),
                             rows.integer(3) != 0, rows.integer(4), rows.integer(5)};
    if (record.lost) lost_[record.key] = record.reason;
    aside_.push_back({record, true});
  }
}

// A damaged mark is left out: an older one then answers in its place.
absl::Status SqliteStore::load_marks() {
  TITAN_ASSIGN_OR_RETURN(Statement rows, Statement::prepare(write_->database.get(),
                                                            "SELECT time_s, revision, crc FROM marks ORDER BY time_s"));
  sync::Lock lock(aside_mutex_);
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return absl::OkStatus();
    const int64_t time_s = rows.integer(0), revision = rows.integer(1);
    if (mark_checksum(time_s, revision) == rows.integer(2)) marks_.add(absl::FromUnixSeconds(time_s), revision);
  }
}

}  // namespace titan::store
