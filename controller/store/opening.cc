// How a store's file is made and looked through when it is opened.

#include "absl/strings/str_cat.h"
#include "common/base/host/random_hex.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/connection.h"

namespace titan::store {
namespace {

failpoint::Point schema_point("store.schema"), schema_made_point("store.schema.made"), heads_point("store.heads"),
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
    TITAN_RETURN_IF_ERROR(keep_aside({"", 0, absl::StrCat(damage, "; the heads were made anew from the log"), false}));
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

// A damaged one is left out: what it would tell is then told by an older one.
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
