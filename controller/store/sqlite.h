#pragma once

// A thin C++ wrapper around SQLite's C interface: statements that clean up after themselves, and errors as Status.

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::store {

// Converts an error, with SQLite's message: ResourceExhausted when the disk (or the page limit) is full, DataLoss when
// the file is damaged, Unavailable while another connection holds it, and Internal for everything else.
absl::Status sqlite_status(sqlite3* database, int code, const std::string& what);

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

// A prepared statement. Call bind() in order, then step() until it returns false, then reset().
class Statement {
 public:
  static absl::StatusOr<Statement> prepare(sqlite3* database, const char* sql);
  Statement() = default;

  Statement& bind(const std::string& text);
  Statement& bind(int64_t number);
  Statement& bind_null();
  // Returns true if there is a row, and false when the statement is done.
  absl::StatusOr<bool> step();
  // Runs a statement without rows, and resets it.
  absl::Status run();
  void reset();

  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  bool is_null(int column) const { return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL; }
  std::string text(int column) const;

 private:
  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement_;
  int next_ = 1;
};

absl::Status execute(sqlite3* database, const std::string& sql);

}  // namespace titan::store
