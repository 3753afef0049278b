#include "controller/store/sqlite.h"

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace titan::store {

absl::Status sqlite_status(sqlite3* database, int code, const std::string& what) {
  const int extended = database == nullptr ? code : sqlite3_extended_errcode(database);
  const int system = database == nullptr ? 0 : sqlite3_system_errno(database);
  std::string message =
      absl::StrCat("store: ", what, ": ", database == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database));
  const bool no_space = system == ENOSPC || system == EDQUOT;
  // A failed fsync is never "full": the pages may be gone from the cache, so nothing may be retried.
  const bool sync_failed = extended == SQLITE_IOERR_FSYNC || extended == SQLITE_IOERR_DIR_FSYNC;
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_IOERR:
      if (no_space && !sync_failed) return absl::ResourceExhaustedError(message);
      return absl::InternalError(absl::StrCat(message, " (I/O error ", extended, ", errno ", system, ")"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<Statement> Statement::prepare(sqlite3* database, const char* sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(database, sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  if (code != SQLITE_OK) return sqlite_status(database, code, absl::StrCat("prepare '", sql, "'"));
  Statement statement;
  statement.statement_.reset(raw);
  return statement;
}

Statement& Statement::bind(const std::string& text) {
  sqlite3_bind_blob64(statement_.get(), next_++, text.data(), text.size(), SQLITE_TRANSIENT);
  return *this;
}

Statement& Statement::bind(int64_t number) {
  sqlite3_bind_int64(statement_.get(), next_++, number);
  return *this;
}

Statement& Statement::bind_null() {
  sqlite3_bind_null(statement_.get(), next_++);
  return *this;
}

absl::StatusOr<bool> Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  const absl::Status status = sqlite_status(sqlite3_db_handle(statement_.get()), code, sqlite3_sql(statement_.get()));
  reset();
  return status;
}

absl::Status Statement::run() {
  absl::StatusOr<bool> row = step();
  reset();
  return row.status();
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  next_ = 1;
}

std::string Statement::text(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
}

absl::Status execute(sqlite3* database, const std::string& sql) {
  const int code = sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : sqlite_status(database, code, sql);
}

}  // namespace titan::store
