#include "controller/store/connection.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

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
  // FULL also under WAL: a commit returns after its fsync. When the log is folded back is the store's to say: SQLite
  // itself would pass over the errors. That free pages can be given back is asked of a new file: it writes, and a file
  // that is there is opened on a full disk, too.
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

}  // namespace titan::store
