#include "controller/store/rows.h"

#include <zlib.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"

namespace titan::store {
namespace {

uLong add(uLong crc, const std::string& bytes) {
  return crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
}
uLong add(uLong crc, int64_t number) { return crc32(crc, reinterpret_cast<const Bytef*>(&number), sizeof number); }

absl::Status decode_state(const std::string& value, Meta& meta) {
  const size_t end = value.rfind(' ');
  const std::string body = value.substr(0, end);
  const std::vector<std::string> fields = absl::StrSplit(body, ' ');
  uint32_t crc = 0;
  if (end == std::string::npos || !absl::SimpleHexAtoi(value.substr(end + 1), &crc) || add(0, body) != crc ||
      fields.size() != 8) {
    return absl::DataLossError("its state does not match its checksum; restore the state folder from a backup");
  }
  meta.id = fields[0];
  size_t at = 1;
  for (int64_t* number : {&meta.epoch, &meta.last_row, &meta.last_revision, &meta.compacted_row,
                          &meta.compacted_revision, &meta.heads, &meta.heads_sum}) {
    if (!absl::SimpleAtoi(fields[at++], number)) return absl::DataLossError("its state cannot be read");
  }
  return absl::OkStatus();
}

}  // namespace

std::string encode_state(const Meta& meta) {
  const std::string body =
      absl::StrCat(meta.id, " ", meta.epoch, " ", meta.last_row, " ", meta.last_revision, " ", meta.compacted_row) +
      absl::StrCat(" ", meta.compacted_revision, " ", meta.heads, " ", meta.heads_sum);
  return absl::StrCat(body, " ", absl::Hex(static_cast<uint32_t>(add(0, body)), absl::kZeroPad8));
}

absl::StatusOr<Meta> read_meta(sqlite3* database) {
  TITAN_ASSIGN_OR_RETURN(Statement read, Statement::prepare(database, "SELECT key, value FROM meta"));
  Meta meta;
  std::optional<std::string> state;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool row, read.step());
    if (!row) break;
    const std::string key = read.text(0);
    if (key == "schema_version") meta.schema = read.integer(1);
    if (key == "state") state = read.text(1);
  }
  if (meta.schema > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("has schema version ", meta.schema,
                                                      " and this titan-controller knows ", kSchemaVersion,
                                                      "; use the newer titan-controller"));
  }
  if (meta.schema != 0 && meta.schema < kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("has schema version ", meta.schema,
                     ", which an unreleased titan-controller wrote, but this one knows only ", kSchemaVersion));
  }
  if (state.has_value() != (meta.schema == kSchemaVersion)) {
    return absl::DataLossError(
        absl::StrCat("its schema version ", meta.schema, " does not fit what it holds; restore it from a backup"));
  }
  if (state) TITAN_RETURN_IF_ERROR(decode_state(*state, meta));
  return meta;
}

int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision) {
  uLong crc = add(add(0, key), revision);
  const char present = value ? 1 : 0;
  crc = crc32(crc, reinterpret_cast<const Bytef*>(&present), 1);
  if (value) crc = add(crc, *value);
  return static_cast<int64_t>(crc);
}

int64_t head_checksum(const std::string& key, int64_t row) { return static_cast<int64_t>(add(add(0, row), key)); }

int64_t mark_checksum(int64_t time_s, int64_t revision) { return static_cast<int64_t>(add(add(0, time_s), revision)); }

absl::StatusOr<RecordChange> read_row(const Statement& row) {
  RecordChange change{row.integer(0), row.text(1), std::nullopt};
  if (!row.is_null(2)) change.value = row.text(2);
  if (checksum(change.key, change.value, change.revision) != row.integer(3)) {
    return absl::DataLossError(absl::StrCat("store: record '", change.key, "' of revision ", change.revision,
                                            " does not match its checksum; restore the state folder from a backup"));
  }
  return change;
}

Head read_head(const Statement& row) {
  Head head{row.text(0), row.integer(1), row.integer(2)};
  head.whole = head_checksum(head.key, head.row) == head.crc;
  return head;
}

namespace {

// Builds heads from the log: the newest intact row of each key.
absl::Status replay_log(sqlite3* database) {
  TITAN_RETURN_IF_ERROR(execute(
      database,
      "DROP TABLE IF EXISTS new_heads;"
      "CREATE TABLE new_heads (key BLOB PRIMARY KEY, id INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"));
  TITAN_ASSIGN_OR_RETURN(Statement rows,
                         Statement::prepare(database, "SELECT revision, key, value, crc, id FROM log ORDER BY id"));
  TITAN_ASSIGN_OR_RETURN(Statement set,
                         Statement::prepare(database, "INSERT OR REPLACE INTO new_heads VALUES (?, ?, ?)"));
  TITAN_ASSIGN_OR_RETURN(Statement drop, Statement::prepare(database, "DELETE FROM new_heads WHERE key = ?"));
  int64_t last = 0;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return absl::OkStatus();
    const absl::StatusOr<RecordChange> change = read_row(rows);
    const int64_t row = rows.integer(4);
    if (row <= last) return absl::DataLossError("the log is out of order; restore the state folder from a backup");
    last = row;
    if (!change.ok()) continue;  // The head that names it shows whose it is.
    if (change->value) {
      TITAN_RETURN_IF_ERROR(set.bind(change->key).bind(row).bind(head_checksum(change->key, row)).run());
    } else {
      TITAN_RETURN_IF_ERROR(drop.bind(change->key).run());
    }
  }
}

struct Sum {
  int64_t heads = 0, sum = 0;
  void add(const Head& head) {
    ++heads;
    sum += head.crc;
  }
};

// Finds old heads that the log does not confirm, because the row that they name is damaged or gone.
absl::StatusOr<Sum> drop_unconfirmed(sqlite3* database, int64_t limit, std::vector<Quarantined>& lost) {
  TITAN_ASSIGN_OR_RETURN(Statement heads, Statement::prepare(database, "SELECT key, id, crc FROM heads"));
  TITAN_ASSIGN_OR_RETURN(Statement find, Statement::prepare(database, "SELECT id FROM new_heads WHERE key = ?"));
  TITAN_ASSIGN_OR_RETURN(Statement drop, Statement::prepare(database, "DELETE FROM new_heads WHERE key = ?"));
  Sum sum;
  int64_t seen = 0;
  while (true) {
    const absl::StatusOr<bool> more = heads.step();
    if (absl::IsDataLoss(more.status())) return sum;  // The rest of the table is unreadable, but the log has it.
    if (!more.ok()) return more.status();
    if (!*more) return sum;
    const Head head = read_head(heads);
    if (++seen > limit) return sum;  // The table leads in circles.
    if (!head.whole) continue;       // The log has the right one.
    TITAN_ASSIGN_OR_RETURN(const bool found, find.bind(head.key).step());
    const int64_t row = found ? find.integer(0) : 0;
    find.reset();
    if (row == head.row) continue;
    sum.add(head);
    TITAN_RETURN_IF_ERROR(drop.bind(head.key).run());
    lost.push_back({head.key, 0, "its row of the log is damaged or missing", true, head.row});
  }
}

absl::StatusOr<Sum> sum_of(sqlite3* database, const char* query) {
  TITAN_ASSIGN_OR_RETURN(Statement heads, Statement::prepare(database, query));
  Sum sum;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool more, heads.step());
    if (!more) return sum;
    sum.add(read_head(heads));
  }
}

}  // namespace

absl::StatusOr<std::string> damage_of_heads(sqlite3* database, const Meta& meta) {
  TITAN_ASSIGN_OR_RETURN(Statement heads, Statement::prepare(database, "SELECT key, id, crc FROM heads"));
  Sum sum;
  std::string last;
  while (true) {
    const absl::StatusOr<bool> more = heads.step();
    if (absl::IsDataLoss(more.status())) return std::string(more.status().message());
    if (!more.ok()) return more.status();
    if (!*more) break;
    const Head head = read_head(heads);
    if (!head.whole) return absl::StrCat("the head of '", head.key, "' does not match its checksum");
    if (sum.heads > 0 && head.key <= last) return absl::StrCat("the head of '", head.key, "' is out of order");
    last = head.key;
    sum.add(head);
  }
  if (sum.heads == meta.heads && sum.sum == meta.heads_sum) return std::string();
  return absl::StrCat(sum.heads, " heads were found, but ", meta.heads, " were written");
}

absl::Status rebuild_heads(sqlite3* database, Meta& meta, std::vector<Quarantined>& lost) {
  TITAN_RETURN_IF_ERROR(replay_log(database));
  TITAN_ASSIGN_OR_RETURN(const Sum gone, drop_unconfirmed(database, 2 * meta.last_row + 1, lost));
  TITAN_ASSIGN_OR_RETURN(const Sum there, sum_of(database, "SELECT key, id, crc FROM new_heads"));
  if (there.heads + gone.heads != meta.heads || there.sum + gone.sum != meta.heads_sum) {
    return absl::DataLossError(absl::StrCat("the log holds ", there.heads + gone.heads, " records, but ", meta.heads,
                                            " were written; restore the state folder from a backup"));
  }
  meta.heads = there.heads;
  meta.heads_sum = there.sum;
  return execute(database, "DROP TABLE heads; ALTER TABLE new_heads RENAME TO heads");
}

}  // namespace titan::store
