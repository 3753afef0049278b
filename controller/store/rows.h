#pragma once

// Rows of the log as they are on disk.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "controller/store/sqlite.h"
#include "controller/store/store.h"

namespace titan::store {

inline constexpr int kSchemaVersion = 1;

// The table "meta".
struct Meta {
  int64_t schema = 0;  // 0: nothing was written yet.
  std::string id;      // The cluster's.
  int64_t compacted_row = 0;
  int64_t compacted_revision = 0;
};
// Errors: FailedPrecondition when a newer program wrote it.
absl::StatusOr<Meta> read_meta(sqlite3* database);

int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision);

// Columns revision, key, value, crc, checked. Errors: DataLoss naming the record.
absl::StatusOr<Change> read_row(const Statement& row);

}  // namespace titan::store
