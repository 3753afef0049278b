#pragma once

// Reads and writes the rows of a SQLite store, each with a checksum, and rebuilds the table "heads" from the log when
// it is damaged.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controller/store/sqlite.h"
#include "controller/store/store.h"

namespace titan::store {

// Version 1 was never released.
inline constexpr int kSchemaVersion = 2;

// The table "meta". Everything except the version is one row with a checksum, written with every group of transactions.
struct Meta {
  int64_t schema = 0;  // 0: nothing was written yet.
  std::string id;      // Id of the cluster.
  int64_t epoch = 0;
  int64_t last_row = 0;
  int64_t last_revision = 0;
  int64_t compacted_row = 0;
  int64_t compacted_revision = 0;
  // Number of all heads and the sum of their checksums, so that a missing head is noticed.
  int64_t heads = 0;
  int64_t heads_sum = 0;
};
// Errors: FailedPrecondition for another schema, naming both versions; DataLoss.
absl::StatusOr<Meta> read_meta(sqlite3* database);
// Encodes the value of the row "state".
std::string encode_state(const Meta& meta);

// Checksums (CRC-32) of a row of the log, a head and a time mark.
int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision);
int64_t head_checksum(const std::string& key, int64_t row);
int64_t mark_checksum(int64_t time_s, int64_t revision);

// Reads and checks a row with columns revision, key, value, crc. Errors: DataLoss, which names the record.
absl::StatusOr<RecordChange> read_row(const Statement& row);

// A row of "heads", which names the row of the log with a record's present value. Columns: key, row, crc.
struct Head {
  std::string key;
  int64_t row = 0;
  int64_t crc = 0;
  bool whole = false;  // The checksum matches.
};
Head read_head(const Statement& row);

// Checks that heads are in order, that each matches its checksum, and that they are those that `meta` counted. Returns
// what is wrong, or "". Reads the table once: about 50 bytes per record.
absl::StatusOr<std::string> damage_of_heads(sqlite3* database, const Meta& meta);

// Rebuilds the table "heads" from the log and counts it in `meta`, inside the caller's transaction. A record with a
// damaged present row gets no head and goes to `lost`. Errors: DataLoss if heads and lost records are not exactly those
// that `meta` counted.
absl::Status rebuild_heads(sqlite3* database, Meta& meta, std::vector<Quarantined>& lost);

}  // namespace titan::store
