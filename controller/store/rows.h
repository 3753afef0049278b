#pragma once

// Reads and writes the rows of a SQLite store as they are on disk, each behind a checksum, and rebuilds the table
// "heads" from the log when it is damaged.

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

// The table "meta". Everything but the version is one row behind a checksum, written with every group of transactions.
struct Meta {
  int64_t schema = 0;  // 0: nothing was written yet.
  std::string id;      // The cluster's.
  int64_t epoch = 0;
  int64_t last_row = 0;
  int64_t last_revision = 0;
  int64_t compacted_row = 0;
  int64_t compacted_revision = 0;
  // Of all heads: how many, and the sum of their checksums, so that one that vanished is missed.
  int64_t heads = 0;
  int64_t heads_sum = 0;
};
// Errors: FailedPrecondition when it is of another schema, naming both versions; DataLoss.
absl::StatusOr<Meta> read_meta(sqlite3* database);
// The value of the row "state".
std::string encode_state(const Meta& meta);

int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision);
int64_t head_checksum(const std::string& key, int64_t row);
int64_t mark_checksum(int64_t time_s, int64_t revision);

// Columns revision, key, value, crc, checked. Errors: DataLoss naming the record.
absl::StatusOr<Change> read_row(const Statement& row);

// A row of "heads": which row of the log is a record's present. Columns key, row, crc.
struct Head {
  std::string key;
  int64_t row = 0;
  int64_t crc = 0;
  bool whole = false;  // The checksum matches.
};
Head read_head(const Statement& row);

// Whether heads are in order, each matches its checksum, and together they are those that `meta` counted; else why not.
// Reads the table once: some 50 bytes a record.
absl::StatusOr<std::string> damage_of_heads(sqlite3* database, const Meta& meta);

// Makes the table "heads" again from the log and counts it in `meta`, inside the caller's transaction. A record whose
// present row is damaged has none and goes to `lost`. Errors: DataLoss when heads and lost ones are not those that
// `meta` counted, no more and no fewer.
absl::Status rebuild_heads(sqlite3* database, Meta& meta, std::vector<Quarantined>& lost);

}  // namespace titan::store
