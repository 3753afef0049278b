#pragma once

// Opens a SQLite store: creates its schema and connections, and checks and loads what it needs before it serves.

#include "controller/store/sqlite_store.h"

namespace titan::store {

// `log` holds every change. `heads` names the row with each record's present value. A value is written once. Rows that
// were superseded long ago are dropped through `previous` when compaction reaches their successor. `quarantine` keeps
// the bytes of rows that did not match their checksum.
inline constexpr char kSchema[] = R"sql(
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, key BLOB NOT NULL, value BLOB,
                                previous INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS heads (key BLOB PRIMARY KEY, id INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quarantine (number INTEGER PRIMARY KEY, key BLOB NOT NULL, revision INTEGER NOT NULL,
                                       reason BLOB NOT NULL, lost INTEGER NOT NULL, row INTEGER NOT NULL,
                                       time_s INTEGER NOT NULL, value BLOB, crc INTEGER);
CREATE TABLE IF NOT EXISTS marks (time_s INTEGER PRIMARY KEY, revision INTEGER NOT NULL, crc INTEGER NOT NULL);
)sql";

struct SqliteStore::Connection {
  Database database;
  Statement find, row, insert, set_head, drop_head, walk, drop_row, set_meta, heads, row_revision, changes;

  // Opens a connection with the settings of a store that serves. `vfs` empty: the system's.
  static absl::StatusOr<std::unique_ptr<Connection>> open(const std::string& path, const std::string& vfs);
  absl::Status prepare();
};

struct SqliteStore::Loaded {
  std::optional<Record> record;
  std::string damage;   // Not empty: the record cannot be read.
  absl::Status failed;  // Not OK: the disk failed, and nothing is known of the record.
};

}  // namespace titan::store
